"""Tokens to text: characters that are split, stop strings across tokens, what is held and paid out."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from services.gateway.answer import Answer
from services.gateway.stop_strings import StopMatcher
from services.gateway.vocabulary import TextDecoder, Vocabulary
from shared.protocol.request import GenerationRequest, Rendering, SamplingParams
from shared.protocol.token import FinishReason, TokenEntry
from tests.support.tokenizers_tiny import KINDS

PROPERTY = settings(max_examples=60, deadline=None)


@cache
def tokenizer(kind: str) -> Tokenizer:
    import json

    return Tokenizer.from_str(json.dumps(KINDS[kind]()))


@cache
def vocabulary(kind: str) -> Vocabulary:
    return Vocabulary(tokenizer(kind))


def request(*, stop: tuple[str, ...] = (), echo: bool = False, chat: bool = False) -> GenerationRequest:
    rendering = Rendering(route="chat" if chat else "completions", created=1, stop=stop, echo=echo)
    sampling = SamplingParams(max_new_tokens=1000)
    return GenerationRequest(id="g", group="g", n_prompt=1, sampling=sampling, rendering=rendering)


def play(
    kind: str, prompt: list[int], tokens: list[int], stop: tuple[str, ...] = (), *, echo: bool = False
) -> tuple[list[str], Answer]:
    """The text pieces of an answer, token by token."""
    answer = Answer([request(stop=stop, echo=echo)], [prompt], vocabulary(kind))
    for token in tokens:
        if answer.feed(0, TokenEntry(token=token)):
            break
    answer.finish(0, FinishReason.LENGTH)
    return [piece.text for piece in answer.pieces if piece.text], answer


def encode(kind: str, text: str) -> list[int]:
    return list(tokenizer(kind).encode(text).ids)


TEXTS = st.text(
    st.one_of(st.characters(codec="utf-8"), st.sampled_from(" \n\t.e\u0301\u200d\U0001f469\U0001f4bb日本語")),
    max_size=40,
)
kinds = pytest.mark.parametrize("kind", sorted(KINDS))


@kinds
@given(text=TEXTS)
@PROPERTY
def test_a_text_comes_back_whole(kind: str, text: str) -> None:
    if kind == "spaces":
        text = text.replace("\u2581", " ")  # the mark itself stands for a space
    decoder = TextDecoder(vocabulary(kind))
    ids = encode(kind, text)
    assert "".join(decoder.feed([token]) for token in ids) + decoder.flush() == text


@kinds
@given(data=st.data(), cut=st.integers(0, 20))
@PROPERTY
def test_any_tokens_give_the_same_text_in_any_portions(kind: str, data: st.DataObject, cut: int) -> None:
    ids = data.draw(st.lists(st.integers(0, vocabulary(kind).size - 1), max_size=40))
    whole = TextDecoder(vocabulary(kind))
    expected = whole.feed(ids) + whole.flush()
    pieces, answer = play(kind, ids[:cut], ids[cut:], echo=True)
    assert "".join(pieces) == expected
    assert answer.n_completion == len(ids[cut:])


@kinds
@given(data=st.data())
@PROPERTY
def test_no_replacement_character_leaves_that_the_whole_text_lacks(kind: str, data: st.DataObject) -> None:
    text = data.draw(TEXTS.filter(lambda text: "\ufffd" not in text))
    pieces, _ = play(kind, encode(kind, "a"), encode(kind, text))
    assert all("\ufffd" not in piece for piece in pieces)


@given(data=st.binary(max_size=30))
@PROPERTY
def test_bytes_that_are_no_text_drain_as_python_decodes_them(data: bytes) -> None:
    pieces, _ = play("bytes", [65], list(data))
    assert "".join(pieces) == data.decode("utf-8", "replace")


@pytest.mark.parametrize("byte", [0x80, 0xBF, 0xC3, 0xF0, 0xFF])
def test_what_is_held_back_is_bounded(byte: int) -> None:
    decoder, shown = TextDecoder(vocabulary("bytes")), 0
    for count in range(1, 20):
        shown += len(decoder.feed([byte]))
        assert count - shown <= 3


def test_a_character_begun_in_the_prompt_is_ended_in_the_text() -> None:
    emoji = "\U0001f600".encode()
    pieces, _ = play("bytes", [65, *emoji[:3]], [emoji[3], 66])
    assert pieces == ["\U0001f600", "B"]


def test_special_tokens_never_show_and_count() -> None:
    ident = tokenizer("bytes").token_to_id("</s>")
    assert ident is not None
    pieces, answer = play("bytes", [65], [66, ident, 67])
    assert ("".join(pieces), answer.n_completion) == ("BC", 3)


# -- stop strings


def reference_cut(text: str, stops: tuple[str, ...]) -> int | None:
    """Where the stop string begins that is complete first; of equals the longest."""
    found = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return min(found)[1] if found else None


SMALL = st.text("ab\u00e9", max_size=30)
STOPS = st.lists(st.text("ab\u00e9", min_size=1, max_size=5), min_size=1, max_size=4).map(tuple)


@given(text=SMALL, stops=STOPS, cuts=st.lists(st.integers(0, 30), max_size=6))
@PROPERTY
def test_the_matcher_finds_the_first_complete_stop_string(
    text: str, stops: tuple[str, ...], cuts: list[int]
) -> None:
    matcher, read = StopMatcher(stops), 0
    borders = sorted({min(cut, len(text)) for cut in cuts} | {len(text)})
    found = None
    for border in borders:
        at = matcher.feed(text[read:border])
        if at is not None:
            found = read + at
            break
        read = border
        held = text[read - matcher.held : read]
        assert any(stop.startswith(held) for stop in stops)
        longer = (text[read - n : read] for n in range(matcher.held + 1, read + 1))
        assert not any(stop.startswith(end) for end in longer for stop in stops)
    assert found == reference_cut(text, stops)


@kinds
@given(text=SMALL, stops=STOPS)
@PROPERTY
def test_text_is_cut_at_the_stop_string_and_nothing_leaks(
    kind: str, text: str, stops: tuple[str, ...]
) -> None:
    pieces, answer = play(kind, encode(kind, "x"), encode(kind, f"x{text}")[len(encode(kind, "x")) :], stops)
    cut = reference_cut(text, stops)
    assert "".join(pieces) == (text if cut is None else text[:cut])
    expected = FinishReason.LENGTH if cut is None else FinishReason.STOP
    assert answer.choices[0].finish_reason == expected


def test_only_a_possible_beginning_is_held_back() -> None:
    pieces, _ = play("bytes", [65], list(b"one two"), ("tx",))
    assert pieces == ["o", "n", "e", " ", "tw", "o"]


def test_held_text_is_paid_out_before_the_finish() -> None:
    answer = Answer([request(stop=("abc",), chat=True)], [[65]], vocabulary("bytes"))
    for byte in b"xab":
        answer.feed(0, TokenEntry(token=byte))
    answer.finish(0, FinishReason.LENGTH)
    assert [piece.text for piece in answer.pieces] == ["", "x", "ab", ""]
    assert answer.pieces[-1].finish_reason == FinishReason.LENGTH


def test_tokens_behind_a_stop_string_are_neither_shown_nor_counted() -> None:
    _, answer = play("bytes", [65], list(b"one"), ("ne",))
    assert answer.n_completion == 3
    assert answer.feed(0, TokenEntry(token=65)) is False
    answer.finish(0, FinishReason.LENGTH)
    assert answer.n_completion == 3
    assert "".join(piece.text for piece in answer.pieces) == "o"
