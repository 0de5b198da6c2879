"""The table of parameters in the documentation says what the code allows."""

from pathlib import Path
from typing import Any

from services.gateway.openai_schema import (
    MAX_BIASES,
    MAX_CHOICES,
    MAX_STOP_CHARACTERS,
    MAX_STOP_TOKEN_IDS,
    MAX_STOPS,
    UNSUPPORTED,
    ChatBody,
    CompletionBody,
)

DOCUMENT = (Path(__file__).parents[2] / "docs" / "parameters.md").read_text("utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in DOCUMENT.splitlines()
    if line[:3] == "| `"
]
SIGNS = {"Ge": "at least", "Gt": "over", "Le": "at most", "MaxLen": "at most"}


def limits(field: Any) -> str:
    """A field's bounds in words, as the table has them."""
    words = []
    for bound in field.metadata:
        sign = SIGNS[type(bound).__name__]
        value = getattr(bound, type(bound).__name__.lower().replace("maxlen", "max_length"))
        words.append(f"{sign} {value}")
    return ", ".join(words)


def test_every_parameter_has_one_row_with_its_bounds_and_default() -> None:
    table = {row[0].strip("`"): row[1:] for row in ROWS if len(row) == 4}
    fields = {**CompletionBody.model_fields, **ChatBody.model_fields}
    assert set(table) == set(fields)
    for name, field in fields.items():
        if name == "logprobs":  # a number of one route, true or false of the other
            continue
        bounds, default, _ = table[name]
        assert bounds.startswith(limits(field)), name
        if not field.is_required():
            expected = "" if field.default is None else str(field.default).lower()
            assert default == expected, name


def test_limits_that_are_checked_by_hand_stand_in_their_rows() -> None:
    table = {row[0].strip("`"): row[1] for row in ROWS if len(row) == 4}
    assert f"{MAX_STOPS} strings of up to {MAX_STOP_CHARACTERS:,} characters" in table["stop"]
    assert f"at most {MAX_BIASES:,} tokens" in table["logit_bias"]
    assert f"at most {MAX_STOP_TOKEN_IDS} ids" in table["stop_token_ids"]
    assert f"prompts times `n` at most {MAX_CHOICES}" in table["n"]


def test_every_parameter_that_is_refused_by_name_is_listed() -> None:
    listed = {row[0].strip("`"): row[1] for row in ROWS if len(row) == 2}
    assert set(listed) == {name for names in UNSUPPORTED.values() for name in names}
    for name, routes in listed.items():
        assert routes == ", ".join(route for route in UNSUPPORTED if name in UNSUPPORTED[route])
