"""Everything that is refused before the first byte, by a table; and the envelope of it all."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from services.gateway.errors import HTTP
from shared.errors import ErrorCode
from tests.gateway.conftest import MODEL, Stack, StackFactory, eventually

BIG = 2**63
VOCAB = 264


def check_envelope(response: httpx.Response, status: int, code: str, param: str | None = "any") -> str:
    """The error object is whole, its id header is there; returns the message."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["type"]) == (code, HTTP[ErrorCode(code)].type)
    assert response.headers["x-request-id"]
    if param != "any":
        assert error["param"] == param, error
    assert isinstance(error["message"], str)
    return error["message"]


@pytest.fixture
async def stack(make_stack: StackFactory) -> Stack:
    return await make_stack()


COMPLETION: list[tuple[dict[str, Any], str, str]] = [
    ({"model": None}, "invalid_value", "model"),
    ({"model": 5}, "invalid_value", "model"),
    ({"prompt": None}, "invalid_value", "prompt"),
    ({"prompt": 5}, "invalid_value", "prompt"),
    ({"prompt": {"a": 1}}, "invalid_value", "prompt"),
    ({"prompt": ["a", 1]}, "invalid_value", "prompt"),
    ({"prompt": [[1], "a"]}, "invalid_value", "prompt"),
    ({"prompt": ["a"] * 129}, "invalid_value", "prompt"),
    ({"prompt": "\ud800"}, "invalid_value", "prompt"),
    ({"max_tokens": 0}, "invalid_value", "max_tokens"),
    ({"max_tokens": -5}, "invalid_value", "max_tokens"),
    ({"max_tokens": 1.5}, "invalid_value", "max_tokens"),
    ({"max_tokens": True}, "invalid_value", "max_tokens"),
    ({"temperature": -1}, "invalid_value", "temperature"),
    ({"temperature": 2.1}, "invalid_value", "temperature"),
    ({"temperature": "hot"}, "invalid_value", "temperature"),
    ({"top_p": 0}, "invalid_value", "top_p"),
    ({"top_p": 1.5}, "invalid_value", "top_p"),
    ({"presence_penalty": 9}, "invalid_value", "presence_penalty"),
    ({"frequency_penalty": -2.1}, "invalid_value", "frequency_penalty"),
    ({"repetition_penalty": 0}, "invalid_value", "repetition_penalty"),
    ({"top_k": -2}, "invalid_value", "top_k"),
    ({"min_p": 1.5}, "invalid_value", "min_p"),
    ({"min_tokens": -1}, "invalid_value", "min_tokens"),
    ({"min_tokens": 9, "max_tokens": 4}, "invalid_value", "min_tokens"),
    ({"seed": BIG}, "invalid_value", "seed"),
    ({"seed": "x"}, "invalid_value", "seed"),
    ({"n": 0}, "invalid_value", "n"),
    ({"n": 100_000}, "invalid_value", "n"),
    ({"n": 65, "prompt": ["a", "b"]}, "invalid_value", "n"),
    ({"logprobs": 21}, "invalid_value", "logprobs"),
    ({"stop": ""}, "invalid_value", "stop"),
    ({"stop": ["a", ""]}, "invalid_value", "stop"),
    ({"stop": [5]}, "invalid_value", "stop"),
    ({"stop": {"a": 1}}, "invalid_value", "stop"),
    ({"stop": ["s"] * 17}, "invalid_value", "stop"),
    ({"stop": "s" * 1001}, "invalid_value", "stop"),
    ({"stop": "\udc00"}, "invalid_value", "stop"),
    ({"logit_bias": []}, "invalid_value", "logit_bias"),
    ({"logit_bias": {"x": 1}}, "invalid_value", "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "invalid_value", "logit_bias"),
    ({"logit_bias": {"99999": 1}}, "invalid_value", "logit_bias"),
    ({"logit_bias": {"1": 101}}, "invalid_value", "logit_bias"),
    ({"logit_bias": {str(i): 1 for i in range(2000)}}, "invalid_value", "logit_bias"),
    ({"stop_token_ids": [-1]}, "invalid_value", "stop_token_ids"),
    ({"stop_token_ids": ["x"]}, "invalid_value", "stop_token_ids"),
    ({"stop_token_ids": 5}, "invalid_value", "stop_token_ids"),
    ({"stream": "perhaps"}, "invalid_value", "stream"),
    ({"stream_options": {"include_usage": True}}, "invalid_value", "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 5}}, "invalid_value", "stream_options"),
    ({"priority": "high"}, "invalid_value", "priority"),
    ({"priority": 11}, "invalid_value", "priority"),
    ({"timeout_seconds": -1}, "invalid_value", "timeout_seconds"),
    ({"on_disconnect": "explode"}, "invalid_value", "on_disconnect"),
    ({"resume_seconds": 601}, "invalid_value", "resume_seconds"),
    ({"suffix": "end"}, "unsupported_parameter", "suffix"),
    ({"best_of": 3}, "unsupported_parameter", "best_of"),
    ({"prompt_logprobs": 1}, "unsupported_parameter", "prompt_logprobs"),
]


@pytest.mark.parametrize(("fields", "code", "param"), COMPLETION, ids=lambda value: str(value)[:40])
async def test_a_bad_completion_field_is_refused_by_name(
    stack: Stack, fields: dict[str, Any], code: str, param: str
) -> None:
    text = json.dumps({"model": MODEL, "prompt": "ab", **fields})
    headers = {"Content-Type": "application/json"}
    response = await stack.http.post("/v1/completions", content=text, headers=headers)
    message = check_envelope(response, 400, code, param)
    assert len(message) < 300
    assert not stack.gateway.hub.streams


CHAT: list[tuple[dict[str, Any], str, str]] = [
    ({"messages": []}, "invalid_value", "messages"),
    ({"messages": "x"}, "invalid_value", "messages"),
    ({"messages": ["x"]}, "invalid_value", "messages"),
    ({"messages": [{"content": "x"}]}, "invalid_value", "messages"),
    ({"messages": [{"role": 5, "content": "x"}]}, "invalid_value", "messages"),
    ({"messages": [{"role": "user"}]}, "invalid_value", "messages"),
    ({"messages": [{"role": "user", "content": None}]}, "invalid_value", "messages"),
    ({"messages": [{"role": "user", "content": [5]}]}, "invalid_value", "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "invalid_value", "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "invalid_value", "messages"),
    ({"messages": [{"role": "forbidden", "content": "x"}]}, "invalid_value", "messages"),
    ({"max_completion_tokens": 0}, "invalid_value", "max_completion_tokens"),
    ({"logprobs": 5}, "invalid_value", "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "invalid_value", "top_logprobs"),
    ({"top_logprobs": 3}, "invalid_value", "top_logprobs"),
    ({"tools": [{"type": "function"}]}, "unsupported_parameter", "tools"),
    ({"tool_choice": "auto"}, "unsupported_parameter", "tool_choice"),
    ({"functions": [{}]}, "unsupported_parameter", "functions"),
    ({"function_call": {"name": "f"}}, "unsupported_parameter", "function_call"),
    ({"response_format": {"type": "json_object"}}, "unsupported_parameter", "response_format"),
    ({"audio": {"voice": "x"}}, "unsupported_parameter", "audio"),
    ({"modalities": ["audio"]}, "unsupported_parameter", "modalities"),
    ({"prediction": {"type": "content"}}, "unsupported_parameter", "prediction"),
]


@pytest.mark.parametrize(("fields", "code", "param"), CHAT, ids=lambda value: str(value)[:40])
async def test_a_bad_chat_field_is_refused_by_name(
    stack: Stack, fields: dict[str, Any], code: str, param: str
) -> None:
    message = check_envelope(await stack.chat(**{"text": "x", **fields}), 400, code, param)
    assert "{%" not in message
    assert "raise_exception" not in message


async def test_a_template_refusal_gives_its_own_reason(stack: Stack) -> None:
    response = await stack.chat([{"role": "forbidden", "content": "x"}])
    assert "no such role" in check_envelope(response, 400, "invalid_value", "messages")


async def test_values_that_ask_for_nothing_are_no_refusal(stack: Stack) -> None:
    harmless: dict[str, Any] = {
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "n": None,
    }
    assert (await stack.chat(max_tokens=3, **harmless)).status_code == 200
    odd: dict[str, Any] = {"best_of": 1, "suffix": None, "stop": [], "no_such_field": {"a": 1}}
    assert (await stack.complete(max_tokens=3, **odd)).status_code == 200


@pytest.mark.parametrize("bad", [VOCAB + 100, -1, BIG, 1.5, "1"])
async def test_a_bad_token_id_is_shown(stack: Stack, bad: Any) -> None:
    message = check_envelope(await stack.complete([[100, bad]]), 400, "invalid_value", "prompt")
    assert str(bad) in message


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
async def test_numbers_that_are_no_json_are_refused(stack: Stack, number: str) -> None:
    content = f'{{"model": "{MODEL}", "prompt": "x", "temperature": {number}}}'
    headers = {"Content-Type": "application/json"}
    response = await stack.http.post("/v1/completions", content=content, headers=headers)
    check_envelope(response, 400, "invalid_value")


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "code"),
    [
        ("POST", "/v1/chat/completions", b"{", 400, "invalid_value"),
        ("POST", "/v1/completions", b"[]", 400, "invalid_value"),
        ("POST", "/v1/completions", b"", 400, "invalid_value"),
        ("POST", "/v1/completions", b"[" * 100_000, 400, "invalid_value"),
        ("POST", "/v1/completions", b'{"prompt": "\xff\xfe"}', 400, "invalid_value"),
        ("GET", "/v1/completions", None, 405, "method_not_allowed"),
        ("DELETE", "/v1/chat/completions", None, 405, "method_not_allowed"),
        ("POST", "/v1/models", b"{}", 405, "method_not_allowed"),
        ("GET", "/v1/nothing", None, 404, "not_found"),
        ("POST", "/v1/completions/", b"{}", 404, "not_found"),
        ("POST", "//v1/completions", b"{}", 404, "not_found"),
        ("GET", "/v1/models/other", None, 404, "model_not_found"),
        ("GET", "/v1/requests/none", None, 404, "not_found"),
        ("GET", "/v1/requests/a.b", None, 404, "not_found"),
        ("GET", "/v1/requests/none/events", None, 404, "not_found"),
        ("GET", "/v1/iterations?after=x", None, 400, "invalid_value"),
        ("GET", "/v1/iterations?engine=none", None, 404, "not_found"),
    ],
)
async def test_every_error_wears_the_envelope(
    stack: Stack, method: str, path: str, content: bytes | None, status: int, code: str
) -> None:
    headers = {"Content-Type": "application/json"} if content is not None else {}
    url = httpx.URL(f"http://gateway{path}") if path.startswith("//") else path
    response = await stack.http.request(method, url, content=content, headers=headers)
    check_envelope(response, status, code)


async def test_other_media_types_are_415_and_large_bodies_413(make_stack: StackFactory) -> None:
    stack = await make_stack(max_body_bytes=2000)
    body = json.dumps({"model": MODEL, "prompt": "x", "max_tokens": 1}).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        response = await stack.http.post("/v1/completions", content=body, headers={"Content-Type": kind})
        check_envelope(response, 415, "unsupported_media_type")
    zipped = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    check_envelope(
        await stack.http.post("/v1/completions", content=body, headers=zipped), 415, "unsupported_media_type"
    )
    assert (await stack.http.post("/v1/completions", content=body)).status_code == 200
    check_envelope(await stack.complete("x" * 3000), 413, "request_too_large")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_without_room_is_refused_with_limit_and_count(stack: Stack, stream: bool) -> None:
    for length in (256, 300):
        response = await stack.complete([65] * length, stream=stream)
        message = check_envelope(response, 400, "context_length_exceeded", "prompt")
        assert "256" in message
        assert str(length) in message
    response = await stack.chat("word " * 100, stream=stream)
    assert "256" in check_envelope(response, 400, "context_length_exceeded", "messages")
    response = await stack.complete("x" * 100_000, stream=stream)
    assert "at least" in check_envelope(response, 400, "context_length_exceeded", "prompt")


async def test_an_answer_is_cut_to_the_context(make_stack: StackFactory) -> None:
    stack = await make_stack(lambda request, prompt: [120] * 300)
    whole = (await stack.complete([65] * 250, max_tokens=100)).json()
    assert whole["usage"] == {"prompt_tokens": 250, "completion_tokens": 6, "total_tokens": 256}
    assert whole["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(("default", "expected"), [(7, 7), (0, 254), (1000, 254)])
async def test_the_default_limit_is_the_setting_within_the_context(
    make_stack: StackFactory, default: int, expected: int
) -> None:
    stack = await make_stack(lambda request, prompt: [120] * 300, default_max_tokens=default)
    for fields in ({}, {"max_tokens": None}):
        usage = (await stack.complete("ab", **fields)).json()["usage"]
        assert usage["completion_tokens"] == expected


async def test_an_empty_prompt_is_the_beginning_token_or_refused(make_stack: StackFactory) -> None:
    stack = await make_stack()
    prompts: tuple[Any, ...] = ("", [], [""], [[]])
    for prompt in prompts:
        response = await stack.complete(prompt, max_tokens=2)
        assert response.json()["usage"]["prompt_tokens"] == 1, prompt
    bare = await make_stack(kind="spaces", model={"bos": False}, backend=False)
    check_envelope(await bare.complete([], max_tokens=2), 400, "invalid_value", "prompt")


async def test_a_model_without_a_template_refuses_chats_only(make_stack: StackFactory) -> None:
    stack = await make_stack(model={"template": None})
    assert "template" in check_envelope(await stack.chat(), 400, "invalid_value", "messages")
    assert (await stack.complete(max_tokens=2)).status_code == 200


async def test_what_no_engine_could_hold_is_refused(make_stack: StackFactory) -> None:
    """Given engines that have shrunk below the advertised context."""
    stack = await make_stack(n_slots=200)
    assert stack.gateway.presence.context == 200
    smaller = stack.gateway.presence.engines[0].model_copy(update={"n_slots": 64})
    stack.gateway.presence._see((smaller,))
    message = check_envelope(await stack.complete([65] * 60, max_tokens=60), 400, "never_fits")
    assert "120" in message
    assert "64" in message


async def test_without_redis_requests_are_503_with_retry_after(
    make_stack: StackFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = await make_stack()

    async def refuse(*_: object, **__: object) -> None:
        raise ConnectionRefusedError("no server")

    monkeypatch.setattr(stack.gateway.pool, "run", refuse)
    for response in (await stack.complete(), await stack.http.get("/v1/requests/cmpl-x")):
        assert "try again" in check_envelope(response, 503, "not_ready")
        assert response.headers["retry-after"]
    monkeypatch.undo()
    assert (await stack.complete(max_tokens=2)).status_code == 200


async def test_each_refused_generation_counts_once(stack: Stack) -> None:
    totals = stack.gateway.keys.totals
    await stack.complete(max_tokens=0)
    await stack.chat(temperature=9)
    await stack.http.get("/v1/nothing")
    await eventually(lambda: stack.pool.hget(totals, "requests:rejected") == b"2")
    await asyncio.gather(*(stack.complete(max_tokens=2) for _ in range(3)))
    assert stack.pool.hget(totals, "requests:rejected") == b"2"
    assert stack.pool.hget(totals, "requests:completed") == b"3"
