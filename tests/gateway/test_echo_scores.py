"""`echo` with `logprobs`, and `max_tokens` 0: the prompt with its scores, whole, streamed and read again."""

from typing import Any

import pytest

from shared.protocol.request import GenerationRequest
from shared.protocol.token import TokenEntry
from tests.gateway.conftest import MODEL, Stack, StackFactory
from tests.gateway.test_generation import events, streamed_text


def scripted(request: GenerationRequest, prompt: list[int]) -> list[int | TokenEntry]:
    """What an engine commits: the prompt's scores travel with the first token."""
    entries = [TokenEntry(token=prompt[0])]
    entries += [
        TokenEntry(token=token, logprob=-1.0 - i, top=((token, -1.0 - i),))
        for i, token in enumerate(prompt[1:])
    ]
    scores = tuple(entries) if request.sampling.prompt_logprobs else ()
    return [
        TokenEntry(token=104, logprob=-0.5, top=((104, -0.5),), prompt=scores),
        TokenEntry(token=105, logprob=-0.25),
    ]


async def ask(stack: Stack, **fields: Any) -> Any:
    response = await stack.complete("a\u00e9", echo=True, **fields)
    assert response.status_code == 200, response.text
    return response.json()


async def test_every_prompt_position_is_scored_and_the_first_is_null(make_stack: StackFactory) -> None:
    stack = await make_stack(scripted)
    answer = await ask(stack, logprobs=1, max_tokens=2)
    (choice,) = answer["choices"]
    assert choice["text"] == "a\u00e9hi"
    scores = choice["logprobs"]
    assert scores["tokens"] == ["a", "bytes:\\xc3", "bytes:\\xa9", "h", "i"]
    assert scores["token_logprobs"] == [None, -1.0, -2.0, -0.5, -0.25]
    assert scores["text_offset"] == [0, 1, 1, 2, 3]
    assert scores["top_logprobs"][0] is None
    assert scores["top_logprobs"][1] == {"bytes:\\xc3": -1.0}
    assert answer["usage"]["completion_tokens"] == 2


async def test_without_alternatives_there_are_no_top_logprobs(make_stack: StackFactory) -> None:
    stack = await make_stack(scripted)
    scores = (await ask(stack, logprobs=0, max_tokens=1))["choices"][0]["logprobs"]
    assert scores["top_logprobs"] is None
    assert len(scores["tokens"]) == len(scores["token_logprobs"]) == 4


@pytest.mark.parametrize("limit", [0, 2])
async def test_the_stream_says_the_same_as_the_whole_and_again_when_read_again(
    make_stack: StackFactory, limit: int
) -> None:
    stack = await make_stack(scripted)
    whole = (await ask(stack, logprobs=1, max_tokens=limit, n=2))["choices"]
    response = await stack.complete("a\u00e9", echo=True, logprobs=1, max_tokens=limit, n=2, stream=True)
    chunks = events(response)
    for choice in whole:
        assert streamed_text(chunks, choice["index"]) == choice["text"]
        parts = [
            c["logprobs"]
            for e in chunks
            for c in e["choices"]
            if c["index"] == choice["index"] and c["logprobs"]
        ]
        got = [logprob for part in parts for logprob in part["token_logprobs"]]
        assert got == choice["logprobs"]["token_logprobs"]
    again = await stack.http.get(f"/v1/requests/{response.headers['x-request-id']}/events")
    assert again.text == response.text


async def test_no_tokens_are_wanted_none_are_shown_or_counted(make_stack: StackFactory) -> None:
    stack = await make_stack(scripted)
    for fields in ({}, {"logprobs": 1}):
        answer = await ask(stack, max_tokens=0, **fields)
        (choice,) = answer["choices"]
        assert (choice["text"], choice["finish_reason"]) == ("a\u00e9", "length")
        assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3}
        assert (choice["logprobs"] is None) == (not fields)
        record = (await stack.http.get(f"/v1/requests/{answer['id']}")).json()
        assert (record["state"], record["tokens"]) == ("completed", 0)


async def test_no_tokens_without_an_echo_is_refused(make_stack: StackFactory) -> None:
    stack = await make_stack(scripted)
    body = {"model": MODEL, "messages": [{"role": "user", "content": "a"}], "max_completion_tokens": 0}
    for refused in (
        await stack.complete("a", max_tokens=0),
        await stack.http.post("/v1/chat/completions", json=body),
    ):
        assert refused.status_code == 400
        error = refused.json()["error"]
        assert error["code"] == "invalid_value"
        assert error["param"] in ("max_tokens", "max_completion_tokens")
