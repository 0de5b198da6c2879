"""The laws that hold in every state and over every step, whatever script made it.

They compare what the pool holds before and after a step; `answers.py` says what each call must
answer and when it may take effect.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.explorer.model import FINAL, Action, View, World, entry

RANK = ("completed", "cancelled", "failed")
PERMANENT: tuple[str, ...] = (
    "open",
    "arrival",
    "groups",
    "inbox",
    "totals",
    "leader_counter",
    "progress",
    "gauges",
    "settings",
)
PERMANENT += ("engines", "gateways")


@dataclass(frozen=True)
class Step:
    """One observed step."""

    before: View
    action: Action
    answer: Any
    after: View
    heard: list[tuple[str, bytes]]
    world: World
    """What the actors know after it."""


FIELDS = {
    "body",
    "state",
    "arrival",
    "attempt",
    "engine",
    "listeners",
    "group",
    "choice",
    "prompt_index",
    "ttl",
}


def fragments(view: View) -> tuple[str, ...]:
    """Records that are not whole; nothing else can be said about such a state."""
    return tuple(f"half a record of {i}" for i, fields in view.records.items() if not set(fields) >= FIELDS)


def groups_of(view: View) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {}
    for fields in view.records.values():
        found.setdefault(fields["group"], []).append(fields)
    return found


def state_laws(view: View, world: World) -> Iterator[str]:
    """What is wrong with a state, if anything."""
    yield from _records(view)
    yield from _lifetimes(view)
    if not world.lossy:
        yield from _counters(view)
        yield from _times(view)
    first = [(e.id, e.attempt) for _, d in world.sent for e in d.entries if e.kind == "first"]
    if len(first) != len(set(first)) and not world.lossy:
        yield "an attempt of a sequence was started twice"


def _records(view: View) -> Iterator[str]:
    unfinished = {i: f["arrival"] for i, f in view.records.items() if f["state"] not in FINAL}
    if view.get("open", {}) != unfinished:
        yield f"open holds {view.get('open', {})}, unfinished are {unfinished}"
    for sequence_id, fields in view.records.items():
        log = view.log(sequence_id)
        if log != [entry(sequence_id, i) for i in range(len(log))]:
            yield f"the log of {sequence_id} is not the right text"
        if int(fields.get("n_tokens", 0)) > len(log):
            yield f"{sequence_id} counts more tokens than its log has"
        if fields["state"] in ("waiting", "running") and (fields["state"] == "running") != bool(
            fields["engine"]
        ):
            yield f"{sequence_id} is {fields['state']} with engine {fields['engine']!r}"
        listeners = fields["listeners"].split()
        if len(listeners) != len(set(listeners)):
            yield f"{sequence_id} has a listener twice"
    for group, members in groups_of(view).items():
        order = sorted(view.get(f"order:{group}", []))
        made = sorted(
            f["choice"] for i, f in view.records.items() if f["group"] == group for _ in view.log(i)
        )
        if order != (made if len(members) > 1 else []):
            yield f"order of {group} is {order}, its logs say {made}"


def _counters(view: View) -> Iterator[str]:
    states = [fields["state"] for fields in view.records.values()]
    expected = {"running": states.count("running"), "requests:completed": 0, "requests:cancelled": 0}
    expected["requests:failed"] = 0
    expected["generated_tokens"] = sum(len(view.log(i)) for i in view.records)
    left: dict[str, str] = {}
    for group, members in groups_of(view).items():
        unfinished = [f["prompt_index"] for f in members if f["state"] not in FINAL]
        ended = [f["state"] for f in members if f["state"] in FINAL]
        worst = max(ended, key=RANK.index, default="completed")
        if not unfinished:
            expected["requests:" + worst] += 1
            continue
        left[group] = str(len(unfinished))
        left |= {f"{group}/{k}": str(unfinished.count(k)) for k in unfinished}
        if worst != "completed":
            left[f"{group}!"] = worst
    for name, number in expected.items():
        if view.total(name) != number:
            yield f"the total {name} is {view.total(name)}, the records say {number}"
    if view.get("groups", {}) != left:
        yield f"groups is {view.get('groups', {})}, the records say {left}"


def _times(view: View) -> Iterator[str]:
    for sequence_id, fields in view.records.items():
        due = {"at_submitted": True, "at_ended": fields["state"] in FINAL}
        due["at_first_token"] = bool(view.log(sequence_id))
        if fields["state"] == "running":
            due["at_started"] = True
        wrong = [name for name, there in due.items() if (name in fields) != there]
        if wrong:
            yield f"{sequence_id} is {fields['state']}, but for its times {wrong}"


def _lifetimes(view: View) -> Iterator[str]:
    kept: set[str] = set()
    for sequence_id, fields in view.records.items():
        if fields["state"] not in FINAL:
            kept |= {f"request:{sequence_id}", f"tokens:{sequence_id}", f"order:{fields['group']}"}
            kept.add(f"prompt:{fields['group']}:{fields['prompt_index']}")
    for name in view.content:
        permanent = name in PERMANENT or name in kept
        if permanent == (name in view.with_lifetime):
            yield f"{name} {'ends too early' if permanent else 'never ends'}"


def step_laws(step: Step) -> Iterator[str]:
    """What is wrong with a step, if anything."""
    if step.action.call is None:
        return
    if isinstance(step.answer, Exception):
        yield f"the script failed: {step.answer}"
        return
    yield from _history(step)
    if step.action.kind != "restore":
        yield from _events(step)
    yield from _inbox(step)


def _history(step: Step) -> Iterator[str]:
    for sequence_id, old in step.before.records.items():
        new = step.after.record(sequence_id)
        log, longer = step.before.log(sequence_id), step.after.log(sequence_id)
        if not new:
            yield f"the record of {sequence_id} vanished"
            continue
        if longer[: len(log)] != log:
            yield f"the log of {sequence_id} was rewritten"
        if old["state"] in FINAL:
            may_change = ("listeners", "n_tokens", "finish_reason")
            if any(new.get(k) != v for k, v in old.items() if k not in may_change) or longer != log:
                yield f"{sequence_id} had ended and was changed"
            if int(new["n_tokens"]) > int(old["n_tokens"]):
                yield f"the ended {sequence_id} counts more tokens than before"
        if int(new["attempt"]) < int(old["attempt"]) or new["arrival"] != old["arrival"]:
            yield f"{sequence_id} has another arrival or an older attempt"
    if not step.world.lossy and any(step.after.times.get(k) != v for k, v in step.before.times.items()):
        yield "a time was set a second time"
    before, after = step.before.get("totals", {}), step.after.get("totals", {})
    for name, value in before.items():
        if name != "running" and int(after.get(name, -1)) < int(value):
            yield f"the total {name} fell from {value} to {after.get(name)}"


def _expected_events(step: Step) -> Iterator[tuple[Any, ...]]:
    for sequence_id, old in step.before.records.items():
        new, start = step.after.record(sequence_id), len(step.before.log(sequence_id))
        if not new:
            continue
        for index, logged in enumerate(step.after.log(sequence_id)[start:], start):
            yield old["listeners"], ("token", sequence_id, index, logged)
        if (old["state"], old.get("n_tokens")) != (new["state"], new.get("n_tokens")):
            says = [new.get(k, "") for k in ("state", "attempt", "finish_reason", "code")]
            yield old["listeners"], ("state", sequence_id, new.get("n_tokens", "0"), *says)


def _events(step: Step) -> Iterator[str]:
    """Every change reached every listener, in one message per gateway, and nothing else did."""
    due: dict[str, list[tuple[Any, ...]]] = {}
    for listeners, event in _expected_events(step):
        for gateway in listeners.split():
            due.setdefault(gateway, []).append(event)
    told: dict[str, list[tuple[Any, ...]]] = {}
    for gateway, payload in step.heard:
        if gateway in told:
            yield f"{gateway} got two messages for one step"
        for e in json.loads(payload)["events"]:
            if e["kind"] == "token":
                event = ("token", e["id"], e["index"], e["entry"])
            else:
                says = [str(e.get(k, "")) for k in ("state", "attempt", "finish_reason", "code")]
                event = ("state", e["id"], str(e.get("n_tokens", 0)), *says)
            told.setdefault(gateway, []).append(event)
    if {g: sorted(map(repr, e)) for g, e in due.items()} != {
        g: sorted(map(repr, e)) for g, e in told.items()
    }:
        yield f"listeners were told {told}, due was {due}"


def _inbox(step: Step) -> Iterator[str]:
    """The scheduler hears of every sequence that appears, ends by another hand, or waits again."""
    if step.action.kind == "trim_inbox":
        return
    old, new = step.before.inbox, step.after.inbox
    if new[: len(old)] != old:
        yield "the inbox was rewritten"
    heard = sorted((e["kind"], e.get("id", "")) for e in new[len(old) :])
    due = [("submit", i) for i in step.after.records if i not in step.before.records]
    for sequence_id, fields in step.before.records.items():
        now = step.after.record(sequence_id).get("state")
        if fields["state"] == "running" and now == "waiting":
            due.append(("reassigned", sequence_id))
        if fields["state"] not in FINAL and now in FINAL and step.action.kind == "end":
            due.append(("end", sequence_id))
    own = {"join_engine": "engine_joined", "drain_engine": "engine_draining", "leave_engine": "engine_left"}
    own |= {"report_engine": "reported", "commit": "result", "change_settings": "settings"}
    if step.action.kind in own and step.answer not in ("PresenceLost", "NotLeader"):
        if step.action.kind == "commit" and step.before.content == step.after.content:
            return
        due.append((own[step.action.kind], ""))
    if heard != sorted(due):
        yield f"the inbox got {heard}, due was {sorted(due)}"
