"""1,000 short requests through two engines: every answer right, none twice, everything idle after."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from shared.keys import Keys
from tests.support.stack import Stack

REQUESTS = 1000
PROMPTS = 40
AT_ONCE = 64


def metric(stack: Stack, name: str) -> float:
    """The sum of one metric over its labels."""
    lines = stack.client.get("/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


async def ask_all(url: str, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every answer, in the order of the requests, with a bounded number at once."""
    room = asyncio.Semaphore(AT_ONCE)
    async with httpx.AsyncClient(
        base_url=url, timeout=120, limits=httpx.Limits(max_connections=AT_ONCE)
    ) as client:

        async def ask(body: dict[str, Any]) -> dict[str, Any]:
            async with room:
                answer = await client.post("/v1/completions", json=body)
                assert answer.status_code == 200, answer.text
                content: dict[str, Any] = answer.json()
                return content

        return await asyncio.gather(*(ask(body) for body in bodies))


def body_of(number: int) -> dict[str, Any]:
    """A short request; the same number always asks for the same tokens."""
    which = number % PROMPTS
    return {
        "model": "tiny",
        "prompt": f"{which} bottles " * (1 + which % 3),
        "max_tokens": 1 + which % 7,
        "temperature": which % 2,
        "seed": which,
        "ignore_eos": True,
    }


def text_of(answer: dict[str, Any]) -> str:
    choices = answer["choices"]
    assert isinstance(choices, list)
    return str(choices[0]["text"])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_thousand_requests_leave_right_answers_and_an_idle_stack(tiny_model: Path, tmp_path: Path) -> None:
    with Stack(tmp_path, tiny_model, "--engines", "2", "--kv-slots", "2048", "--record-ttl", "2") as stack:
        # Given what each prompt answers when it is asked alone ...
        alone = [text_of(stack.complete(**body_of(number))) for number in range(PROMPTS)]
        completed = metric(stack, 'orca_requests_total{outcome="completed"}')
        # ... when 1,000 come, many at once ...
        answers = asyncio.run(ask_all(stack.url, [body_of(number) for number in range(REQUESTS)]))
        # ... then each has the answer it has alone, and nobody was answered twice.
        assert [text_of(answer) for answer in answers] == [alone[n % PROMPTS] for n in range(REQUESTS)]
        assert len({answer["id"] for answer in answers}) == REQUESTS
        assert metric(stack, 'orca_requests_total{outcome="completed"}') - completed == REQUESTS
        assert_idle(stack)


def assert_idle(stack: Stack) -> None:
    """No request, slot or key is left of what has ended."""
    for name in ("orca_requests_running", "orca_requests_waiting", "orca_kv_slots_reserved"):
        stack.wait_until(f"{name} 0", lambda name=name: metric(stack, name) == 0)
    keys = Keys("tiny")
    url = next(row["url"] for row in stack.ps() if row["service"] == "redis")
    with redis.Redis.from_url(url, decode_responses=True) as client:
        assert client.zcard(keys.open) == 0
        for pattern in (keys.request("*"), keys.tokens("*"), keys.prompt("*", 0)):
            stack.wait_until(f"no {pattern}", lambda pattern=pattern: not list(client.scan_iter(pattern)))
        assert client.hlen(keys.groups) == 0
