"""What the calls of presence must answer: join, beat, drain, report, leave, the question.

One rule per script, each reads the state before the step and the call's meaning, never the script.
"""

import json
from collections.abc import Iterator

from shared.protocol.batch import BatchDescriptor
from shared.protocol.settings import RuntimeSettings
from tests.explorer.actions import status
from tests.explorer.invariants import Step
from tests.explorer.rules import fenced, only, refused, says


def join_engine(step: Step) -> Iterator[str]:
    engine = step.action.about["engine"]
    start = step.before.total(f"last_iteration:{engine.rpartition('.')[0]}")
    yield from says(step, start)
    last = step.before.last_iteration(engine)
    if step.after.last_iteration(engine) != (start if last is None else last):
        yield f"the stream of {engine} ends with {step.after.last_iteration(engine)}"
    if last is not None and step.before.get(f"batches:{engine}") != step.after.get(f"batches:{engine}"):
        yield f"the stream of {engine} was changed"
    if engine not in step.after.get("engines", []) or step.after.get(f"engine:{engine}") is None:
        yield f"{engine} is not present"
    if step.after.get("progress", {}).get(engine) != "0":
        yield f"{engine} has no progress"


def beat_engine(step: Step) -> Iterator[str]:
    about = step.action.about
    engine = about["engine"]
    if any(step.before.get(f"{kind}:{engine}") is None for kind in ("engine", "batches")):
        yield from refused(step, "PresenceLost")
        return
    yield from says(step, None)
    yield from only(step, "progress")
    if step.after.get("progress", {}).get(engine) != str(about["progress"]):
        yield f"the progress of {engine} was not told"


def drain_engine(step: Step) -> Iterator[str]:
    engine = step.action.about["engine"]
    if step.before.get(f"engine:{engine}") is None:
        yield from refused(step, "PresenceLost")
        return
    yield from says(step, None)
    yield from only(step, f"engine:{engine}", "inbox")
    if step.after.get(f"engine:{engine}") != status(engine, draining=True).model_dump_json():
        yield f"{engine} does not drain"


def report_engine(step: Step) -> Iterator[str]:
    if step.before.get(f"engine:{step.action.about['engine']}") is None:
        yield from refused(step, "PresenceLost")
    else:
        yield from says(step, None)
        yield from only(step, "inbox")


def leave_engine(step: Step) -> Iterator[str]:
    engine = step.action.about["engine"]
    name = engine.rpartition(".")[0]
    if fenced(step):
        yield from refused(step, "NotLeader")
        return
    yield from says(step, None)
    left = [key for key in step.after.content if key.endswith(f":{engine}")]
    if left or engine in [*step.after.get("engines", []), *step.after.get("progress", {})]:
        yield f"{engine} left {left} behind"
    if name in step.after.get("gauges", {}):
        yield f"{engine} left its gauges behind"
    yield from only(
        step,
        "engines",
        "progress",
        "gauges",
        "inbox",
        *(f"{k}:{engine}" for k in ("engine", "batches", "committed")),
    )


def ask_report(step: Step) -> Iterator[str]:
    engine = step.action.about["engine"]
    last = step.before.last_iteration(engine)
    if fenced(step):
        yield from refused(step, "NotLeader")
    elif last is None:
        yield from refused(step, "LookupError")
    else:
        yield from says(step, last + 1)
        number, payload = step.after.get(f"batches:{engine}")[1][-1]
        question = BatchDescriptor.model_validate_json(payload)
        if not (number == question.iteration == last + 1) or not question.report:
            yield f"the question is {question}"
        if question.fence != step.action.about["fence"]:
            yield "the question names another fence"
        yield from only(step, f"batches:{engine}")


def trim_inbox(step: Step) -> Iterator[str]:
    if fenced(step):
        yield from refused(step, "NotLeader")
        return
    yield from says(step, None)
    before = step.action.about["before"]
    if step.after.inbox_ids != [i for i in step.before.inbox_ids if _place(i) >= _place(before)]:
        yield "the inbox was trimmed elsewhere"
    yield from only(step, "inbox")


def _place(entry_id: str) -> tuple[int, ...]:
    return tuple(map(int, entry_id.split("-")))


def join_gateway(step: Step) -> Iterator[str]:
    gateway = step.action.actor
    if gateway not in step.after.get("gateways", []) or step.after.get(f"gateway:{gateway}") is None:
        yield f"{gateway} is not present"
    yield from only(step, "gateways", f"gateway:{gateway}")


def beat_gateway(step: Step) -> Iterator[str]:
    here = step.before.get(f"gateway:{step.action.actor}") is not None
    yield from refused(step, None if here else "PresenceLost")


def leave_gateway(step: Step) -> Iterator[str]:
    gateway = step.action.actor
    if gateway in step.after.get("gateways", []) or step.after.get(f"gateway:{gateway}") is not None:
        yield f"{gateway} is still present"
    yield from only(step, "gateways", f"gateway:{gateway}")


def change_settings(step: Step) -> Iterator[str]:
    """What was not named stays as it was, and the answer is all that holds now."""
    old = {name: json.loads(value) for name, value in step.before.get("settings", {}).items()}
    due = old | step.action.about["changes"]
    yield from says(step, RuntimeSettings.model_validate(due))
    now = {name: json.loads(value) for name, value in step.after.get("settings", {}).items()}
    if now != due:
        yield f"the settings are {now}, due was {due}"
    yield from only(step, "settings", "inbox")
    fields = step.after.inbox[-1].get("fields", []) if step.after.inbox else []
    told = {name: json.loads(value) for name, value in zip(fields[::2], fields[1::2], strict=True)}
    if told != due:
        yield f"the scheduler was told {told}, due was {due}"
