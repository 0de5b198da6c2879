"""What is written once can be read for ever, and what cannot be read is kept as it came."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import DecodeError
from shared.keys import PROTOCOL_VERSION
from shared.protocol.inbox import INBOX_EVENT, Ended
from shared.protocol.request import GenerationRequest
from shared.protocol.token import TokenEntry
from shared.protocol.wire import Message, Versioned, decode, encode
from tests.protocol.examples import EXAMPLES, LARGEST_SEED, REQUEST

GOLDEN = Path(__file__).parent / "golden" / f"v{PROTOCOL_VERSION}"


def kinds(base: type[Message]) -> Iterator[type[Message]]:
    for kind in base.__subclasses__():
        yield kind
        yield from kinds(kind)


@pytest.mark.parametrize("name", EXAMPLES)
def test_golden_files_decode_to_the_message_they_were_made_from(name: str) -> None:
    golden = (GOLDEN / f"{name}.json").read_bytes()
    assert decode(type(EXAMPLES[name]), golden) == EXAMPLES[name]


@pytest.mark.parametrize("name", EXAMPLES)
def test_messages_are_written_as_their_golden_files_say(name: str) -> None:
    """A difference here is a change of the protocol: add a field with a default, or a version."""
    golden = json.loads((GOLDEN / f"{name}.json").read_bytes())
    assert json.loads(encode(EXAMPLES[name])) == golden


def test_every_message_that_stands_alone_has_a_golden_file() -> None:
    assert {type(example) for example in EXAMPLES.values()} >= set(kinds(Versioned))
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_fields_of_a_newer_minor_change_are_ignored(name: str) -> None:
    content = json.loads(encode(EXAMPLES[name])) | {"a_later_field": [1]}
    assert decode(type(EXAMPLES[name]), json.dumps(content)) == EXAMPLES[name]


def broken(**changes: Any) -> bytes:
    content = json.loads(encode(Ended(id="a"))) | changes
    return json.dumps({k: v for k, v in content.items() if v is not None}).encode()


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(broken(version=PROTOCOL_VERSION + 1), id="another version"),
        pytest.param(broken(kind="unheard-of"), id="unknown kind"),
        pytest.param(broken(kind=None), id="no kind"),
        pytest.param(broken(id=None), id="missing field"),
        pytest.param(broken(id=[1]), id="wrong type"),
        pytest.param(b"", id="empty"),
        pytest.param(b"{", id="cut"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b"\xff\xfe\x00", id="no text"),
    ],
)
def test_what_cannot_be_read_is_an_error_that_keeps_the_bytes(payload: bytes) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(INBOX_EVENT, payload)
    assert caught.value.payload == payload
    assert str(caught.value)


def test_64_bit_seeds_survive_exactly() -> None:
    for seed in (LARGEST_SEED, -(2**63)):
        sampling = REQUEST.sampling.model_copy(update={"seed": seed})
        request = REQUEST.model_copy(update={"sampling": sampling})
        assert decode(GenerationRequest, encode(request)).sampling.seed == seed


@given(
    token=st.integers(0, 2**31),
    logprob=st.floats(max_value=0, allow_nan=False, allow_infinity=False),
    top=st.lists(st.tuples(st.integers(0, 2**31), st.floats(-1e4, 0)), max_size=20),
)
@settings(max_examples=50)
def test_log_entries_round_trip(token: int, logprob: float, top: list[tuple[int, float]]) -> None:
    entry = TokenEntry(token=token, logprob=logprob, top=tuple(top))
    assert decode(TokenEntry, encode(entry)) == entry


@given(text=st.text(max_size=50))
@settings(max_examples=50)
def test_any_text_survives_the_wire(text: str) -> None:
    rendering = REQUEST.rendering.model_copy(update={"stop": (text,), "user": text})
    request = REQUEST.model_copy(update={"rendering": rendering})
    assert decode(GenerationRequest, encode(request)) == request


def test_messages_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        REQUEST.id = "another"  # type: ignore[misc]
