"""The official `openai` client, unchanged, against a whole stack: answers, streams, helpers, typed errors;
and one agent framework (Pydantic AI) in plain chat, which speaks through it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from tests.support.stack import Stack

KEY = "sk-client-0123456789"
USER: Any = [{"role": "user", "content": "hello"}]
STEADY: dict[str, Any] = {"ignore_eos": True}
"""Fields of ours go into `extra_body`, as for any other server with extensions."""


@pytest.fixture(scope="module")
def stack(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One slot of batch and three of queue, so that waiting and refusing are easy to bring about."""
    home = tmp_path_factory.mktemp("openai")
    (home / "keys").write_text(f"client:{KEY}\n")
    limits = [
        "--max-batch-size",
        "1",
        "--max-queue",
        "3",
        "--queue-timeout",
        "2",
        "--max-body-bytes",
        "20000",
    ]
    options = [*limits, "--api-key-file", str(home / "keys"), "--test-faults", "--kv-slots", "2048"]
    with Stack(home, tiny_model, *options) as running:
        yield running


@pytest.fixture
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key=KEY, max_retries=0, timeout=60) as made:
        yield made


def whole_chat(client: openai.OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(
        **{
            "model": "tiny",
            "messages": USER,
            "max_tokens": 12,
            "temperature": 0,
            "extra_body": STEADY,
            **fields,
        }
    )


def whole_completion(client: openai.OpenAI, **fields: Any) -> Any:
    return client.completions.create(
        **{
            "model": "tiny",
            "prompt": "hello",
            "max_tokens": 12,
            "temperature": 0,
            "extra_body": STEADY,
            **fields,
        }
    )


# -- answers


def test_models_are_listed_and_found(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model == client.models.retrieve("tiny")
    assert model.id == "tiny"


def test_a_chat_is_answered_with_its_scores_and_usage(client: openai.OpenAI) -> None:
    answer = whole_chat(client, n=2, logprobs=True, top_logprobs=3, seed=4)
    assert answer.object == "chat.completion"
    assert [choice.finish_reason for choice in answer.choices] == ["length", "length"]
    assert answer.usage.completion_tokens == 24
    content = answer.choices[0].logprobs.content
    assert len(content) == 12
    assert all(len(token.top_logprobs) == 3 and token.bytes is not None for token in content)
    assert b"".join(bytes(token.bytes) for token in content).decode(errors="replace") == (
        answer.choices[0].message.content
    )


def test_a_completion_is_the_same_streamed_and_whole(client: openai.OpenAI) -> None:
    whole = whole_completion(client, prompt=["one", "two"], logprobs=2)
    texts = {0: "", 1: ""}
    usage = None
    for chunk in whole_completion(
        client, prompt=["one", "two"], stream=True, stream_options={"include_usage": True}
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert [choice.text for choice in whole.choices] == [texts[0], texts[1]]
    assert usage == whole.usage
    assert [len(choice.logprobs.token_logprobs) for choice in whole.choices] == [12, 12]


def test_the_streaming_helper_puts_the_answer_together(client: openai.OpenAI) -> None:
    text = whole_chat(client).choices[0].message.content
    fields: Any = {"model": "tiny", "messages": USER, "temperature": 0, "extra_body": STEADY}
    fields |= {"max_tokens": 12, "stop": [text[4:6]]}  # the helper takes an end by length for a failure
    with client.chat.completions.stream(**fields, stream_options={"include_usage": True}) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content == text[: text.index(text[4:6])]
    assert final.choices[0].finish_reason == "stop"
    assert final.usage is not None
    assert final.usage.completion_tokens == whole_chat(client, stop=[text[4:6]]).usage.completion_tokens


def test_raw_and_streaming_responses_carry_the_id(client: openai.OpenAI) -> None:
    fields: Any = {"model": "tiny", "messages": USER, "max_tokens": 3, "extra_body": STEADY}
    raw = client.chat.completions.with_raw_response.create(**fields)
    assert raw.parse().id == raw.headers["x-request-id"] == raw.request_id
    with client.chat.completions.with_streaming_response.create(**fields, stream=True) as streamed:
        lines = [line for line in streamed.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"


async def test_the_asynchronous_client_runs_several_streams_at_once(stack: Stack) -> None:
    async with openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key=KEY, max_retries=0) as client:

        async def one(text: str) -> str:
            stream = await client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": text}], max_tokens=6, temperature=0,
                stream=True, extra_body=STEADY,
            )  # fmt: skip
            return "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])

        alone = [await one(text) for text in ("a", "bc")]
        assert list(await asyncio.gather(one("a"), one("bc"))) == alone


def test_closing_a_stream_cancels_the_request(client: openai.OpenAI, stack: Stack) -> None:
    stream = whole_chat(client, stream=True, max_tokens=400)
    ident = next(iter(stream)).id
    stream.close()
    stack.wait_until("the request is cancelled", lambda: record(client, ident)["state"] == "cancelled", 20)


def record(client: openai.OpenAI, ident: str) -> Any:
    return client.get(f"/requests/{ident}", cast_to=object)


# -- typed errors


def fault(text: str) -> dict[str, str]:
    return {"X-Orca-Fault": text}


Ask = Callable[[openai.OpenAI], Any]
BAD, MISSING = openai.BadRequestError, openai.NotFoundError
OTHER, SERVER = openai.APIStatusError, openai.InternalServerError
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
HASTY = {**STEADY, "timeout_seconds": 0.3}
TEXT_PLAIN = {"Content-Type": "text/plain"}
REFUSED: list[tuple[type[openai.APIStatusError], int, str, Ask]] = [
    (BAD, 400, "invalid_value", lambda c: whole_chat(c, temperature=7)),
    (BAD, 400, "unsupported_parameter", lambda c: whole_chat(c, tools=TOOLS)),
    (BAD, 400, "context_length_exceeded", lambda c: whole_completion(c, prompt=[5] * 600)),
    (openai.AuthenticationError, 401, "invalid_api_key", lambda c: whole_chat(c.with_options(api_key="x"))),
    (MISSING, 404, "model_not_found", lambda c: whole_chat(c, model="other")),
    (MISSING, 404, "not_found", lambda c: c.get("/nothing", cast_to=object)),
    (OTHER, 405, "method_not_allowed", lambda c: c.get("/completions", cast_to=object)),
    (
        OTHER,
        408,
        "request_timeout",
        lambda c: whole_chat(c, extra_body=HASTY, extra_headers=fault("decode:1=sleep:1")),
    ),
    (OTHER, 413, "request_too_large", lambda c: whole_completion(c, prompt="x" * 30_000)),
    (OTHER, 415, "unsupported_media_type", lambda c: whole_chat(c, extra_headers=TEXT_PLAIN)),
    (SERVER, 500, "engine_failed", lambda c: whole_chat(c, extra_headers=fault("prefill=raise"))),
    (SERVER, 500, "internal_error", lambda c: whole_chat(c, extra_headers=fault("tokenize=raise"))),
]


@pytest.mark.parametrize(("kind", "status", "code", "ask"), REFUSED, ids=[case[2] for case in REFUSED])
def test_a_refusal_is_the_clients_own_typed_error(
    client: openai.OpenAI, kind: type[openai.APIStatusError], status: int, code: str, ask: Ask
) -> None:
    with pytest.raises(kind) as caught:
        ask(client)
    assert type(caught.value) is kind
    assert (caught.value.status_code, caught.value.code) == (status, code)
    assert caught.value.request_id
    assert caught.value.type
    assert caught.value.message


def test_the_same_key_with_another_body_is_a_conflict(client: openai.OpenAI) -> None:
    headers = {"Idempotency-Key": "order-1"}
    first = whole_chat(client, extra_headers=headers)
    assert whole_chat(client, extra_headers=headers).id == first.id
    with pytest.raises(openai.ConflictError) as caught:
        whole_chat(client, max_tokens=3, extra_headers=headers)
    assert caught.value.code == "idempotency_conflict"


def refused(client: openai.OpenAI, **fields: Any) -> openai.RateLimitError | None:
    try:
        whole_chat(client, max_tokens=1, **fields)
    except openai.RateLimitError as error:
        return error
    return None


def test_a_full_queue_is_a_rate_limit_that_the_client_waits_out_by_itself(client: openai.OpenAI) -> None:
    with ThreadPoolExecutor(3) as threads:
        held = fault("prefill=sleep:1")
        slow = [threads.submit(whole_chat, client, max_tokens=1, extra_headers=held) for _ in range(2)]
        time.sleep(0.3)
        error = refused(client, n=3)
        assert error is not None
        assert (error.status_code, error.code) == (429, "queue_full")
        assert float(error.response.headers["retry-after"]) > 0
        assert refused(client.with_options(max_retries=5), n=3) is None
        assert all(call.result().choices for call in slow)


def test_a_wait_beyond_the_limit_and_a_cancelled_request_have_their_own_errors(client: openai.OpenAI) -> None:
    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(
            whole_chat,
            client,
            max_tokens=400,
            extra_headers={**fault("decode:1=sleep:4"), "Idempotency-Key": "r"},
        )
        time.sleep(0.3)
        with pytest.raises(openai.InternalServerError) as waited:
            whole_chat(client)
        assert (waited.value.status_code, waited.value.code) == (503, "queue_timeout")
        assert float(waited.value.response.headers["retry-after"]) > 0
        (ident,) = {member["id"] for it in iterations(client)[-1:] for member in it["members"]}
        client.delete(f"/requests/{ident}", cast_to=object)
        with pytest.raises(openai.APIStatusError) as cancelled:
            running.result()
        assert (cancelled.value.status_code, cancelled.value.code) == (499, "request_cancelled")
    assert whole_chat(client.with_options(max_retries=9)).choices  # the iteration that sleeps is over


def iterations(client: openai.OpenAI) -> list[Any]:
    answer: Any = client.get("/iterations", cast_to=object)
    found: list[Any] = answer["data"]
    return found


def test_a_failure_in_mid_stream_is_an_error_with_our_message(client: openai.OpenAI) -> None:
    stream = whole_chat(client, stream=True, extra_headers=fault("decode:3=raise"))
    with pytest.raises(openai.APIError) as caught:
        list(stream)
    assert caught.value.code == "engine_failed"
    assert "fault asked for" in caught.value.message


# -- an agent framework


@pytest.fixture
async def agent(stack: Stack) -> AsyncIterator["Agent[None, str]"]:
    settings = ModelSettings(max_tokens=12, temperature=0, extra_body=STEADY)
    async with openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key=KEY, max_retries=0) as client:
        model = OpenAIChatModel("tiny", provider=OpenAIProvider(openai_client=client))
        yield Agent(model, instructions="Be brief.", model_settings=settings)


async def test_an_agent_framework_holds_a_conversation(agent: "Agent[None, str]") -> None:
    first = await agent.run("hello")
    assert isinstance(first.output, str)
    assert first.usage.output_tokens == 12
    second = await agent.run("and?", message_history=first.all_messages())
    assert second.usage.input_tokens > first.usage.input_tokens


async def test_an_agent_framework_streams(agent: "Agent[None, str]") -> None:
    async with agent.run_stream("hello") as result:
        pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
    assert len(pieces) > 1
    assert "".join(pieces) == (await agent.run("hello")).output
