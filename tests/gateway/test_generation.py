"""Whole and streamed answers through the real pool, with a scripted engine."""

import asyncio
import json
from typing import Any

import httpx

from tests.gateway.conftest import StackFactory, bytes_script, eventually


def events(response: httpx.Response) -> list[Any]:
    """The data of each event; checks the framing."""
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = [block for block in response.text.split("\n\n") if block and not block.startswith(":")]
    assert blocks[-1] == "data: [DONE]"
    found = []
    for number, block in enumerate(blocks[:-1]):
        ident, data = block.split("\n")
        head, _, tail = ident.removeprefix("id: ").rpartition(":")
        assert head == response.headers["x-request-id"]
        assert int(tail) == number
        found.append(json.loads(data.removeprefix("data: ")))
    return found


def streamed_text(chunks: list[Any], index: int = 0) -> str:
    text = ""
    for chunk in chunks:
        for choice in chunk.get("choices", ()):
            if choice["index"] == index:
                text += choice["text"] if "text" in choice else choice["delta"].get("content", "")
    return text


async def test_a_completion_is_answered_whole(make_stack: StackFactory) -> None:
    stack = await make_stack(bytes_script("hello"))
    response = await stack.complete("ab", max_tokens=20)
    assert response.status_code == 200, response.text
    body = response.json()
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    assert body["id"] == response.headers["x-request-id"]
    assert body["choices"] == [{"index": 0, "text": "hello", "logprobs": None, "finish_reason": "stop"}]
    assert body["usage"] == {"prompt_tokens": 2, "completion_tokens": 6, "total_tokens": 8}


async def test_a_chat_is_streamed_with_role_text_finish_and_done(make_stack: StackFactory) -> None:
    stack = await make_stack(bytes_script("hé"))
    response = await stack.chat("x", max_tokens=20, stream=True)
    first, *middle, last = events(response)
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [chunk["choices"][0]["delta"]["content"] for chunk in middle] == ["h", "é"]
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in (first, *middle))
    assert last["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert "usage" not in last


async def test_several_choices_are_interleaved_and_numbered(make_stack: StackFactory) -> None:
    stack = await make_stack(lambda request, prompt: list(f"c{request.choice}".encode()))
    options = {"include_usage": True}
    response = await stack.complete(["a", "b"], n=2, max_tokens=20, stream=True, stream_options=options)
    chunks = events(response)
    assert [streamed_text(chunks, index) for index in range(4)] == ["c0", "c1", "c2", "c3"]
    ended = [c["choices"][0]["index"] for c in chunks[:-1] if c["choices"][0]["finish_reason"]]
    assert sorted(ended) == [0, 1, 2, 3]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == {"prompt_tokens": 2, "completion_tokens": 12, "total_tokens": 14}


async def test_a_stop_string_ends_the_sequence_in_the_pool(make_stack: StackFactory) -> None:
    stack = await make_stack(bytes_script("one two three"))
    response = await stack.complete(max_tokens=50, stop=[" two"], stream=True)
    chunks = events(response)
    assert streamed_text(chunks) == "one"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    record = (await stack.http.get(f"/v1/requests/{chunks[0]['id']}")).json()
    assert (record["state"], record["tokens"], record["finish_reason"]) == ("completed", 7, "stop")
    assert stack.pool.zcard(stack.gateway.keys.open) == 0


async def test_a_failed_sequence_ends_in_a_verdict(make_stack: StackFactory) -> None:
    stack = await make_stack(lambda request, prompt: [104, 105, -1])
    response = await stack.complete(max_tokens=50, stream=True)
    *_, error = events(response)
    assert (error["error"]["code"], error["error"]["type"]) == ("engine_failed", "server_error")
    whole = await stack.complete(max_tokens=50)
    assert (whole.status_code, whole.json()["error"]["code"]) == (500, "engine_failed")


async def test_the_events_can_be_read_again_from_any_number(make_stack: StackFactory) -> None:
    stack = await make_stack(lambda request, prompt: list(f"text {request.choice}".encode()))
    first = await stack.chat(n=3, max_tokens=20, stream=True, stream_options={"include_usage": True})
    seen = first.text
    path = f"/v1/requests/{first.headers['x-request-id']}/events"
    await eventually(lambda: not stack.gateway.hub.streams)
    assert (await stack.http.get(path)).text == seen
    blocks = seen.split("\n\n")
    ident = blocks[4].split("\n")[0].removeprefix("id: ")
    rest = await stack.http.get(path, headers={"Last-Event-ID": ident})
    assert rest.text == "\n\n".join(blocks[5:])


async def test_a_full_queue_is_429(make_stack: StackFactory) -> None:
    stack = await make_stack(max_queue=2)
    stack.backend.go.clear()
    waiting = [asyncio.create_task(stack.complete(max_tokens=5)) for _ in range(2)]
    await eventually(lambda: stack.pool.zcard(stack.gateway.keys.open) == 2)
    refused = await stack.complete(max_tokens=5)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
    assert int(refused.headers["retry-after"]) > 0
    stack.backend.go.set()
    assert [r.status_code for r in await asyncio.gather(*waiting)] == [200, 200]


async def test_delete_cancels_a_running_request(make_stack: StackFactory) -> None:
    stack = await make_stack(bytes_script("x" * 100))
    stack.backend.limit = 3
    task = asyncio.create_task(stack.complete(max_tokens=90))
    await eventually(lambda: any(m.index == 3 for m in stack.backend.held.values()))
    (ident,) = stack.backend.held
    assert (await stack.http.delete(f"/v1/requests/{ident}")).status_code == 204
    response = await task
    assert (response.status_code, response.json()["error"]["code"]) == (499, "request_cancelled")
    assert (await stack.http.delete(f"/v1/requests/{ident}")).status_code == 204
    assert (await stack.http.delete("/v1/requests/cmpl-none")).status_code == 404
