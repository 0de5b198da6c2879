"""What a client puts together from a stream is the whole answer, whatever the tokens, the stop strings
and the order in which several choices get theirs. Properties over the pure part of the gateway,
held against the tokenizer library's own decoder.
"""

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from services.gateway.answer import Answer
from services.gateway.rendering import Renderer, to_json
from services.gateway.vocabulary import TextDecoder, Vocabulary
from shared.protocol.request import GenerationRequest, Rendering, SamplingParams
from shared.protocol.token import FinishReason, TokenEntry
from tests.support.tokenizers_tiny import KINDS

PROPERTY = settings(
    max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much]
)
kinds = pytest.mark.parametrize("kind", sorted(KINDS))
routes = pytest.mark.parametrize("route", ["completions", "chat"])

HARD = [
    "日本語",
    "한국어",
    "👩‍💻",
    "👨‍👩‍👧‍👦",
    "🏳️‍🌈",
    "🇩🇪",
    "é",
    "ộ",
    "नि",
    " ",
    "  ",
    "\n",
    "\t",
    "the",
    " the",
    ".",
    "z\u0335",
]
TEXTS = st.lists(st.one_of(st.sampled_from(HARD), st.characters(codec="utf-8")), max_size=14).map("".join)


@cache
def tokenizer(kind: str) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(KINDS[kind]()))


@cache
def vocabulary(kind: str) -> Vocabulary:
    return Vocabulary(tokenizer(kind))


def tokens_of(kind: str) -> st.SearchStrategy[list[int]]:
    """Texts as the tokenizer writes them, cut anywhere, with any ids in between: half a character,
    bytes that are no text, special tokens."""
    text = TEXTS.map(lambda text: list(tokenizer(kind).encode(text).ids))
    cut = st.builds(lambda ids, a, b: ids[a : len(ids) - b], text, st.integers(0, 3), st.integers(0, 3))
    wild = st.lists(st.integers(0, vocabulary(kind).size - 1), max_size=4)
    return st.lists(st.one_of(text, cut, wild), max_size=3).map(
        lambda parts: [i for part in parts for i in part]
    )


def decoded(kind: str, tokens: list[int]) -> str:
    """The text of all tokens at once, behind a prompt."""
    decoder = TextDecoder(vocabulary(kind))
    before = decoder.feed(PROMPT[kind])
    assert before == "a"
    return decoder.feed(tokens) + decoder.flush()


PROMPT = {kind: list(tokenizer(kind).encode("a").ids) for kind in KINDS}


def group(route: str, n: int, stop: tuple[str, ...]) -> list[GenerationRequest]:
    rendering = Rendering.model_validate({"route": route, "created": 1, "stop": stop, "include_usage": True})
    return [
        GenerationRequest(
            id=f"g.{i}", group="g", choice=i, n_choices=n, n_prompt=1,
            sampling=SamplingParams(max_new_tokens=1000), rendering=rendering,
        )
        for i in range(n)
    ]  # fmt: skip


class Client:
    """Reads an answer as a client does: chunk by chunk through JSON, one text per choice."""

    def __init__(self, kind: str, route: str, n: int, stop: tuple[str, ...]) -> None:
        self.answer = Answer(group(route, n, stop), [PROMPT[kind]], vocabulary(kind))
        self.renderer = Renderer(self.answer, vocabulary(kind), "m")
        self.texts = [""] * n
        self.reasons: list[str | None] = [None] * n
        self._read = 0

    def token(self, choice: int, token: int) -> None:
        if not self.answer.choices[choice].finish_reason:
            self.answer.feed(choice, TokenEntry(token=token))
        self.read()

    def finish(self, choice: int) -> None:
        self.answer.finish(choice, FinishReason.LENGTH)
        self.read()

    def read(self) -> None:
        for piece in self.answer.pieces[self._read :]:
            chunk: Any = json.loads(to_json(self.renderer.chunk(piece)))
            (choice,) = chunk["choices"]
            number = choice["index"]
            assert self.reasons[number] is None, "a chunk after the choice's last one"
            self.texts[number] += choice["text"] if "text" in choice else choice["delta"].get("content", "")
            self.reasons[number] = choice["finish_reason"]
        self._read = len(self.answer.pieces)

    def whole(self) -> list[tuple[str, str]]:
        """Text and finish reason of each choice in the answer that is not streamed."""
        answer: Any = json.loads(to_json(self.renderer.whole()))
        return [
            (c["text"] if "text" in c else c["message"]["content"], c["finish_reason"])
            for c in answer["choices"]
        ]


def cut_at(text: str, stops: tuple[str, ...]) -> int | None:
    """Where the stop string begins that is complete first; of several the longest."""
    found = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return min(found)[1] if found else None


@kinds
@routes
@given(data=st.data())
@PROPERTY
def test_interleaved_choices_stream_what_each_gives_alone(kind: str, route: str, data: st.DataObject) -> None:
    tokens = [data.draw(tokens_of(kind)) for _ in range(data.draw(st.integers(1, 3)))]
    order = data.draw(st.permutations([i for i, ids in enumerate(tokens) for _ in ids]))
    client, rest = Client(kind, route, len(tokens), ()), [iter(ids) for ids in tokens]
    for choice in order:
        client.token(choice, next(rest[choice]))
    for choice in data.draw(st.permutations(range(len(tokens)))):
        client.finish(choice)
    expected = [(decoded(kind, ids), "length") for ids in tokens]
    assert list(zip(client.texts, client.reasons, strict=True)) == expected
    assert client.whole() == expected
    assert client.answer.n_completion == sum(map(len, tokens))


@kinds
@given(text=TEXTS)
@example(text="👩‍💻e\u0301日本\u2028z\u0335 ")
@PROPERTY
def test_a_text_is_streamed_as_the_librarys_own_decoder_writes_it(kind: str, text: str) -> None:
    assume(kind != "spaces" or "\u2581" not in text)  # the mark itself stands for a space
    ids = list(tokenizer(kind).encode("a" + text).ids)
    n = len(PROMPT[kind])
    if ids[:n] != PROMPT[kind]:
        return  # a merge across the border: no continuation of this prompt
    client = Client(kind, "completions", 1, ())
    for token in ids[n:]:
        client.token(0, token)
        assert "\ufffd" not in client.texts[0] or "\ufffd" in text
    client.finish(0)
    assert "a" + client.texts[0] == tokenizer(kind).decode(ids)


@given(tokens=st.lists(st.integers(0, 255), max_size=40))
@PROPERTY
def test_bytes_that_are_no_text_are_replaced_as_the_librarys_own_decoder_does(tokens: list[int]) -> None:
    client = Client("bytes", "completions", 1, ())
    for token in tokens:
        client.token(0, token)
    client.finish(0)
    assert client.texts[0] == tokenizer("bytes").decode(tokens)


@kinds
@routes
@given(data=st.data())
@PROPERTY
def test_stop_strings_cut_where_they_are_first_complete(kind: str, route: str, data: st.DataObject) -> None:
    """Stop strings are parts of the text itself: inside a token, across several, one within another."""
    tokens = data.draw(tokens_of(kind))
    text = decoded(kind, tokens)
    assume(text)
    stops = tuple(data.draw(st.lists(parts_of(text), min_size=1, max_size=3)))
    client = Client(kind, route, 1, stops)
    for count, token in enumerate(tokens, 1):
        client.token(0, token)
        if client.reasons[0]:
            break
        check_held(client, decoded_so_far(kind, tokens[:count]), stops)
    client.finish(0)
    at = cut_at(text, stops)
    assert at is not None
    assert client.texts == [text[:at]]
    assert client.reasons == ["stop"]
    assert client.whole() == [(text[:at], "stop")]
    assert client.answer.n_completion == needed(kind, tokens, stops)


def parts_of(text: str) -> st.SearchStrategy[str]:
    """Any part of a text, of one to six characters."""
    starts = st.integers(0, len(text) - 1)
    return st.builds(lambda start, length: text[start : start + length], starts, st.integers(1, 6))


def decoded_so_far(kind: str, tokens: list[int]) -> str:
    """The whole characters that these tokens make behind the prompt."""
    decoder = TextDecoder(vocabulary(kind))
    decoder.feed(PROMPT[kind])
    return decoder.feed(tokens)


def check_held(client: Client, text: str, stops: tuple[str, ...]) -> None:
    """Shown is everything but the longest end that may still become a stop string."""
    kept = max(
        (n for stop in stops for n in range(1, min(len(stop), len(text) + 1)) if text.endswith(stop[:n])),
        default=0,
    )
    assert client.texts[0] == text[: len(text) - kept]


def needed(kind: str, tokens: list[int], stops: tuple[str, ...]) -> int:
    """How many tokens it takes to see a stop string."""
    for count in range(1, len(tokens) + 1):
        if cut_at(decoded_so_far(kind, tokens[:count]), stops) is not None:
            return count
    return len(tokens)


@kinds
@given(data=st.data())
@PROPERTY
def test_a_stop_string_of_one_choice_touches_no_other(kind: str, data: st.DataObject) -> None:
    tokens = [data.draw(tokens_of(kind)) for _ in range(2)]
    texts = [decoded(kind, ids) for ids in tokens]
    assume(texts[0])
    stops = (data.draw(parts_of(texts[0])),)
    client, rest = Client(kind, "chat", 2, stops), [iter(ids) for ids in tokens]
    for choice in data.draw(st.permutations([i for i, ids in enumerate(tokens) for _ in ids])):
        client.token(choice, next(rest[choice]))
    for choice in (1, 0):
        client.finish(choice)
    for text, got, reason in zip(texts, client.texts, client.reasons, strict=True):
        at = cut_at(text, stops)
        assert (got, reason) == ((text, "length") if at is None else (text[:at], "stop"))
