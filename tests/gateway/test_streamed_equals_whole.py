"""Through HTTP and the pool: the same tokens give the same text streamed, whole, and read again from
the middle; for both kinds of tokenizers, both routes and several choices at once."""

import random
from typing import Any

import pytest

from shared.protocol.request import GenerationRequest
from tests.gateway.conftest import MODEL, Stack, StackFactory
from tests.gateway.test_generation import events, streamed_text
from tests.support.tokenizers_tiny import KINDS

PARTS = ["日本語 ", "👩‍💻", "🏳️‍🌈", "e\u0301", "नि", "the  the\n\t", ".", "\u2028", "plain"]
WORLDS = 4


def script(request: GenerationRequest, prompt: list[int]) -> list[int]:
    """Random tokens that depend on the seed and the choice alone; every third world has any ids at all."""
    world = request.sampling.seed
    rng = random.Random(1000 * world + request.choice)
    size = len(KINDS["bytes"]()["model"]["vocab"])
    if world % 3 == 0:
        return [rng.randrange(size) for _ in range(30)]
    raw = "".join(rng.choice(PARTS) for _ in range(6)).encode()
    return list(raw[rng.randrange(3) :])


def spelled(request: GenerationRequest, prompt: list[int]) -> list[int]:
    """The same bytes as byte tokens of the sentencepiece-style tokenizer."""
    first = KINDS["spaces"]()["model"]["vocab"]["<0x00>"]
    return [first + token if token < 256 else token for token in script(request, prompt)]


async def ask(stack: Stack, route: str, **fields: Any) -> Any:
    body = {"model": MODEL, "max_tokens": 100, "n": 2, **fields}
    if route == "chat/completions":
        return await stack.http.post(
            f"/v1/{route}", json={**body, "messages": [{"role": "user", "content": "x"}]}
        )
    return await stack.http.post(f"/v1/{route}", json={**body, "prompt": "x"})


def whole_texts(answer: Any) -> list[tuple[str, str]]:
    return [
        (choice["text"] if "text" in choice else choice["message"]["content"], choice["finish_reason"])
        for choice in answer.json()["choices"]
    ]


def streamed_texts(chunks: list[Any]) -> list[tuple[str, str]]:
    reasons = {
        choice["index"]: choice["finish_reason"]
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["finish_reason"]
    }
    return [(streamed_text(chunks, index), reasons[index]) for index in (0, 1)]


@pytest.mark.parametrize("route", ["completions", "chat/completions"])
@pytest.mark.parametrize(
    ("kind", "tokens"), [("bytes", script), ("spaces", spelled)], ids=["bytes", "spaces"]
)
async def test_streamed_whole_and_resumed_texts_are_the_same(
    make_stack: StackFactory, kind: str, tokens: Any, route: str
) -> None:
    stack = await make_stack(tokens, kind=kind)
    for seed in range(WORLDS):
        for stop in (None, ["語 ", "the", "\ufffd"]):
            whole = await ask(stack, route, seed=seed, stop=stop)
            stream = await ask(stack, route, seed=seed, stop=stop, stream=True)
            assert whole.status_code == stream.status_code == 200, whole.text
            chunks = events(stream)
            assert streamed_texts(chunks) == whole_texts(whole), (seed, stop)
            await check_resume(stack, stream, len(chunks) // 2)


async def check_resume(stack: Stack, stream: Any, number: int) -> None:
    """Reading on behind an event gives exactly the events behind it."""
    ident = stream.headers["x-request-id"]
    again = await stack.http.get(
        f"/v1/requests/{ident}/events", headers={"Last-Event-ID": f"{ident}:{number}"}
    )
    assert again.text == stream.text.split(f"id: {ident}:{number}\n", 1)[1].split("\n\n", 1)[1]
