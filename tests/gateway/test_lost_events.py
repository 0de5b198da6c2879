"""Pub/sub may lose anything, and Redis may go back in time: the text is the same."""

import asyncio
import json

from services.gateway.stream import GroupStream
from shared.protocol.token import TokenEntry, TokenEvent
from shared.protocol.wire import encode
from tests.gateway.conftest import MODEL, Stack, StackFactory, bytes_script, eventually
from tests.gateway.test_generation import events, streamed_text

TEXT = "the quick brown fox"


async def held_at(stack: Stack, count: int) -> str:
    """Wait until the only sequence has so many tokens; returns its id."""
    await eventually(lambda: any(m.index == count for m in stack.backend.held.values()))
    (ident,) = stack.backend.held
    return ident


def stream_of(stack: Stack, ident: str) -> GroupStream:
    stream = stack.gateway.hub.find(ident)
    assert stream is not None
    return stream


async def test_lost_token_events_are_found_in_the_log(make_stack: StackFactory) -> None:
    stack = await make_stack(bytes_script(TEXT))
    stack.backend.limit = 3
    call = asyncio.create_task(stack.complete(max_tokens=50, stream=True))
    stream = stream_of(stack, await held_at(stack, 3))
    await eventually(lambda: len(stream.answer.pieces) == 3)
    deliver, stack.gateway.hub._by_sequence[stream.group] = stream, None  # type: ignore[assignment]
    stack.backend.limit = 8
    await held_at(stack, 8)
    stack.gateway.hub._by_sequence[stream.group] = deliver
    stack.backend.limit = None
    assert streamed_text(events(await call)) == TEXT


async def test_a_lost_end_is_found_after_two_seconds_of_silence(make_stack: StackFactory) -> None:
    stack = await make_stack(bytes_script(TEXT))
    stack.gateway.hub.deliver = lambda event: None  # type: ignore[method-assign]
    stack.gateway.subscription._on_event = lambda event: None
    response = await stack.complete(max_tokens=50, n=2)
    assert [choice["text"] for choice in response.json()["choices"]] == [TEXT, TEXT]


async def test_a_new_subscription_reads_the_log(make_stack: StackFactory) -> None:
    stack = await make_stack(bytes_script(TEXT))
    stack.backend.limit = 5
    call = asyncio.create_task(stack.complete(max_tokens=50))
    stream = stream_of(stack, await held_at(stack, 5))
    stack.gateway.hub.resubscribed()
    stack.backend.limit = None
    assert (await call).json()["choices"][0]["text"] == TEXT
    assert stream.answer.n_completion == len(TEXT) + 1


async def test_after_a_restart_of_redis_shown_tokens_are_given_back(make_stack: StackFactory) -> None:
    stack = await make_stack(bytes_script(TEXT))
    keys = stack.gateway.keys
    stack.backend.limit = 5
    call = asyncio.create_task(stack.complete(max_tokens=50, stream=True))
    ident = await held_at(stack, 5)
    stream = stream_of(stack, ident)
    await eventually(lambda: len(stream.answer.pieces) == 5)
    log = stack.pool.lrange(keys.tokens(ident), 0, -1)
    stack.backend.held.clear()
    stack.pool.delete(keys.request(ident), keys.tokens(ident), keys.prompt(ident, 0), keys.open)
    stream._log._run_id = "an earlier start"
    stack.gateway.hub.resubscribed()
    await eventually(lambda: stack.pool.lrange(keys.tokens(ident), 0, -1) == log)
    stack.backend.limit = None
    assert streamed_text(events(await call)) == TEXT


async def test_after_a_flush_open_requests_end_and_new_ones_work(make_stack: StackFactory) -> None:
    stack = await make_stack(bytes_script(TEXT))
    stack.backend.limit = 5
    call = asyncio.create_task(stack.complete(max_tokens=50))
    ident = await held_at(stack, 5)
    stack.backend.held.clear()
    stack.backend.limit = None
    stack.pool.delete(stack.gateway.keys.request(ident), stack.gateway.keys.tokens(ident))
    response = await call
    assert (response.status_code, response.json()["error"]["code"]) == (500, "engine_failed")
    assert (await stack.complete(max_tokens=50)).json()["choices"][0]["text"] == TEXT


async def test_a_token_that_contradicts_a_shown_one_ends_the_stream(make_stack: StackFactory) -> None:
    stack = await make_stack(bytes_script(TEXT))
    stack.backend.limit = 5
    call = asyncio.create_task(stack.complete(max_tokens=50, stream=True))
    ident = await held_at(stack, 5)
    stream = stream_of(stack, ident)
    await eventually(lambda: len(stream.answer.pieces) == 5)
    same, other = (encode(TokenEntry(token=token)).decode() for token in (TEXT.encode()[2], 33))
    stack.gateway.hub.deliver(TokenEvent(id=ident, index=2, entry=same))
    assert stream.failure is None
    stack.gateway.hub.deliver(TokenEvent(id=ident, index=2, entry=other))
    *shown, error = events(await call)
    assert streamed_text(shown) == TEXT[:5]
    assert error["error"]["code"] == "engine_failed"
    record = (await stack.http.get(f"/v1/requests/{ident}")).json()
    assert (record["state"], record["error"]["code"]) == ("failed", "engine_failed")


async def test_the_other_gateway_gives_the_same_events(make_stack: StackFactory) -> None:
    one = await make_stack(lambda request, prompt: list(f"choice {request.choice}".encode()))
    two = await make_stack(backend=False, gateway_id="gateway-1")
    one.backend.limit = 4
    call = asyncio.create_task(one.chat(n=3, max_tokens=20, stream=True))
    await eventually(lambda: any(m.index == 4 for m in one.backend.held.values()))
    (group,) = {member.request.group for member in one.backend.held.values()}
    other = asyncio.create_task(two.http.get(f"/v1/requests/{group}/events"))
    await eventually(lambda: bool(two.gateway.hub.streams))
    one.backend.limit = None
    assert (await call).text == (await other).text
    assert json.dumps(MODEL) in (await call).text
