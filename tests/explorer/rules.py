"""What the rules of `answers.py` and `answers_presence.py` share: an answer, and what was changed."""

from collections.abc import Iterator
from typing import Any

from tests.explorer.invariants import Step


def says(step: Step, expected: Any) -> Iterator[str]:
    if step.answer != expected:
        yield f"{step.action.call and step.action.call.script} answered {step.answer!r}, due was {expected!r}"


def refused(step: Step, expected: Any) -> Iterator[str]:
    """The answer says no, and nothing at all was changed."""
    yield from says(step, expected)
    yield from kept(step, "a refused call")


def kept(step: Step, what: str) -> Iterator[str]:
    if step.before.fingerprint != step.after.fingerprint:
        old, new = step.before.content, step.after.content
        changed = sorted(k for k in {*old, *new} if old.get(k) != new.get(k))
        yield f"{what} changed {changed or 'a lifetime'}"


def only(step: Step, *names: str) -> Iterator[str]:
    """Nothing but these keys was changed."""
    old, new = step.before.content, step.after.content
    for name in sorted({*old, *new} - set(names)):
        if old.get(name) != new.get(name):
            yield f"{name} was changed too"


def has(step: Step, sequence_id: str, **expected: Any) -> Iterator[str]:
    fields = step.after.record(sequence_id)
    for name, value in expected.items():
        if fields.get(name) != str(value):
            yield f"{sequence_id} has {name} {fields.get(name)!r}, due was {value!r}"


def fenced(step: Step) -> bool:
    fence = step.action.about["fence"]
    return bool(fence != "" and step.before.get("leader") != fence)
