"""What each call must answer, and when it may take effect: one rule per script.

Each rule reads the state before the step and the call's meaning, never the script. Yields what is
wrong. Rules come on top of the laws of `invariants.py`, which say what an effect must look like.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

from shared.protocol.batch import BatchDescriptor
from shared.protocol.result import IterationResult, SequenceOutput
from tests.explorer import answers_presence as presence
from tests.explorer.invariants import Step
from tests.explorer.model import FINAL, View
from tests.explorer.rules import fenced, has, kept, only, refused, says

Rule = Callable[[Step], Iterator[str]]


def acquire(step: Step) -> Iterator[str]:
    token, leader = step.action.about["token"], step.before.get("leader")
    if leader is None:
        fence = f"{int(step.before.get('leader_counter', 0)) + 1}:{token}"
        yield from says(step, fence)
        if (
            step.after.get("leader") != fence
            or step.after.get("leader_counter") != fence.split(":", maxsplit=1)[0]
        ):
            yield "the lead was not taken"
    else:
        yield from refused(step, leader if leader.endswith(f":{token}") else "")


def renew(step: Step) -> Iterator[str]:
    yield from refused(step, step.before.get("leader") == step.action.about["lead"])


def resign(step: Step) -> Iterator[str]:
    leads = step.before.get("leader") == step.action.about["lead"]
    if not leads:
        yield from refused(step, False)
        return
    yield from says(step, True)
    if step.after.get("leader") is not None:
        yield "the lead was not given up"


def submit(step: Step) -> Iterator[str]:
    about = step.action.about
    requests, bound = about["requests"], step.before.get(f"idempotency:{about['idempotency']}")
    group = requests[0].group
    if step.before.record(requests[0].id):
        yield from refused(step, ("accepted", group))
    elif bound and bound.split()[1] != about["replaces"]:
        mark, other = bound.split()
        yield from refused(step, ("known" if mark == about["fingerprint"] else "conflict", other))
    elif len(step.before.get("open", {})) + len(requests) > about["max_queue"]:
        yield from refused(step, ("full", group))
    else:
        yield from _accepted(step, group)


def _accepted(step: Step, group: str) -> Iterator[str]:
    about = step.action.about
    yield from says(step, ("accepted", group))
    arrival = int(step.before.get("arrival", 0))
    for number, request in enumerate(about["requests"], arrival + 1):
        fields = {"arrival": number, "attempt": 0, "engine": "", "strikes": 0, "state": "waiting"}
        fields |= {"listeners": about["gateway"], "group": group, "n_choices": len(about["requests"])}
        fields |= {"choice": request.choice, "prompt_index": request.prompt_index, "ttl": 600}
        yield from has(step, request.id, **fields)
        if step.after.get(f"prompt:{group}:{request.prompt_index}") is None:
            yield f"prompt {request.prompt_index} of {group} is missing"
    if step.after.total("prompt_tokens") - step.before.total("prompt_tokens") != 2 * about["n_prompts"]:
        yield "prompt tokens do not count once per prompt"
    key = f"idempotency:{about['idempotency'] or '-'}"
    due = f"{about['fingerprint']} {group}" if about["idempotency"] else None
    if step.after.get(key) != due:
        yield f"{key} is bound to {step.after.get(key)!r}, due was {due!r}"


def dispatch(step: Step) -> Iterator[str]:
    about, descriptor = step.action.about, step.action.about["descriptor"]
    last = step.before.last_iteration(about["engine"])
    if fenced(step):
        yield from refused(step, "NotLeader")
    elif last is None:
        yield from refused(step, "LookupError")
    elif last >= descriptor.iteration:
        yield from refused(step, ())
    elif misplaced := _misplaced(step.before, about["engine"], descriptor):
        yield from refused(step, misplaced)
    else:
        yield from _sent(step, descriptor)


def _misplaced(view: View, engine: str, descriptor: BatchDescriptor) -> tuple[str, ...]:
    def fits(member: Any) -> bool:
        fields = view.record(member.id)
        place = ("waiting", "") if member.kind == "first" else ("running", engine)
        return (fields.get("state"), fields.get("engine")) == place and fields["attempt"] == str(
            member.attempt
        )

    return tuple(member.id for member in descriptor.entries if not fits(member))


def _sent(step: Step, descriptor: BatchDescriptor) -> Iterator[str]:
    engine, trim = step.action.about["engine"], step.action.about["trim"]
    yield from says(step, ())
    for member in descriptor.entries:
        yield from has(step, member.id, state="running", engine=engine, attempt=member.attempt)
    old, new = step.before.get(f"batches:{engine}"), step.after.get(f"batches:{engine}")
    numbers = [n for n, _ in old[1] if n >= trim] + [descriptor.iteration]
    if new is None or [n for n, _ in new[1]] != numbers:
        yield f"the stream of {engine} is {new}, due were the iterations {numbers}"
    records = [f"request:{m.id}" for m in descriptor.entries]
    yield from only(step, f"batches:{engine}", "totals", *records)


def commit(step: Step) -> Iterator[str]:
    result: IterationResult = step.action.about["result"]
    stored = step.before.get(f"committed:{result.engine}")
    if stored is not None and int(stored.split(" ")[0]) >= result.iteration:
        yield from refused(step, json.loads(stored.split(" ", 1)[1]))
        return
    owned = {o.id: _owned(step.before, result.engine, o) for o in result.outputs}
    live = {o.id: owned[o.id] and _expected(step.before, o) for o in result.outputs}
    yield from says(step, live)
    stale = sum(
        not live[o.id] and not (owned[o.id] and step.before.record(o.id)["state"] in FINAL)
        for o in result.outputs
    )
    if step.after.total("stale_writes") - step.before.total("stale_writes") != stale:
        yield f"stale writes did not rise by {stale}"
    for output in result.outputs:
        yield from _output(step, output, accepted=live[output.id])
    yield from _told(step, result)


def _owned(view: View, engine: str, output: SequenceOutput) -> bool:
    fields = view.record(output.id)
    return (fields.get("engine"), fields.get("attempt")) == (engine, str(output.attempt))


def _expected(view: View, output: SequenceOutput) -> bool:
    return view.record(output.id)["state"] == "running" and output.index == len(view.log(output.id))


def _output(step: Step, output: SequenceOutput, *, accepted: bool) -> Iterator[str]:
    old, new = step.before.record(output.id), step.after.record(output.id)
    length = len(step.before.log(output.id))
    if not accepted:
        if old != new or len(step.after.log(output.id)) != length:
            yield f"a refused token changed {output.id}"
        return
    length += output.token is not None
    if len(step.after.log(output.id)) != length:
        yield f"the log of {output.id} has {len(step.after.log(output.id))} tokens, due were {length}"
    state = "failed" if output.code else "completed" if output.finish_reason else "running"
    yield from has(step, output.id, state=state)
    if state != "running":
        yield from has(step, output.id, n_tokens=length, code=output.code, finish_reason=output.finish_reason)


def _told(step: Step, result: IterationResult) -> Iterator[str]:
    """The inbox entry says the same as the answer; iterations with members are recorded."""
    said = step.after.inbox[-1]
    if not isinstance(said.get("outputs"), list):
        yield "the inbox entry has no list of outputs"
        return
    outputs = {o["id"]: (o["accepted"], o["ended"]) for o in said.get("outputs", [])}
    due = {i: (ok, step.after.record(i).get("state") in FINAL) for i, ok in dict(step.answer).items()}
    if outputs != due or said.get("iteration") != result.iteration or said.get("engine") != result.engine:
        yield f"the inbox says {said}, due was {due}"
    name = result.engine.rpartition(".")[0]
    recorded = len(step.after.get(f"iterations:{name}", [])) - len(step.before.get(f"iterations:{name}", []))
    if recorded != bool(result.outputs) or (
        result.outputs and step.after.get("gauges", {}).get(name) != "{}"
    ):
        yield f"{recorded} iterations were recorded"
    counted = step.after.total(f"iterations:{name}") - step.before.total(f"iterations:{name}")
    if counted != bool(result.outputs):
        yield f"{counted} iterations were counted"
    last = max(result.iteration, step.before.total(f"last_iteration:{name}"))
    if step.after.total(f"last_iteration:{name}") != last:
        yield f"the last iteration of {name} is not {last}"
    if not result.outputs and step.before.get("gauges") != step.after.get("gauges"):
        yield "gauges were changed by an iteration without a record"


def reassign(step: Step) -> Iterator[str]:
    about, fields = step.action.about, step.before.record(step.action.about["id"])
    place = ("running", about["engine"], str(about["attempt"]))
    if fenced(step):
        yield from refused(step, "NotLeader")
    elif tuple(fields.get(k) for k in ("state", "engine", "attempt")) != place:
        yield from refused(step, False)
    else:
        yield from says(step, True)
        strikes = int(fields["strikes"]) + about["strike"]
        due = {"state": "waiting", "engine": "", "attempt": about["attempt"] + 1, "strikes": strikes}
        yield from has(step, about["id"], **due)
        yield from only(step, f"request:{about['id']}", "inbox", "totals")


def end(step: Step) -> Iterator[str]:
    about = step.action.about
    sequence_id, fields = about["id"], step.before.record(about["id"])
    state = fields.get("state")
    if fenced(step):
        yield from refused(step, "NotLeader")
    elif state is None:
        yield from says(step, None)
        yield from only(step, "open")
    elif state in FINAL:
        yield from _ended_already(step, fields)
    elif about["only_if"] not in ("", state):
        yield from refused(step, state)
    else:
        yield from says(step, state)
        length = len(step.before.log(sequence_id))
        asked = about["n_tokens"]
        counts = length if asked is None else min(asked, length)
        due = {"state": about["outcome"], "finish_reason": about["reason"], "code": about["code"]}
        yield from has(step, sequence_id, n_tokens=counts, **due)


def _ended_already(step: Step, fields: dict[str, str]) -> Iterator[str]:
    about, asked = step.action.about, step.action.about["n_tokens"]
    both = (about["outcome"], fields["state"]) == ("completed", "completed")
    if both and asked is not None and asked < int(fields["n_tokens"]):
        yield from says(step, "completed")
        yield from has(step, about["id"], n_tokens=asked, finish_reason=about["reason"])
        yield from only(step, f"request:{about['id']}")
    else:
        yield from refused(step, fields["state"])


def attach(step: Step) -> Iterator[str]:
    about, fields = step.action.about, step.before.record(step.action.about["id"])
    listeners = fields.get("listeners", "").split()
    if not fields or not about["gateway"] or about["gateway"] in listeners:
        yield from kept(step, "a mere read")
    else:
        yield from has(step, about["id"], listeners=" ".join([*listeners, about["gateway"]]))
        yield from only(step, f"request:{about['id']}")
    if not fields or step.answer is None:
        yield from says(step, None if not fields else "a record")
        return
    got, log = step.answer, step.before.log(about["id"])
    if list(got.entries) != log[about["index"] :] or got.record.state != fields["state"]:
        yield f"attach read {got.entries} and {got.record.state}"
    if list(map(str, got.order)) != step.before.get(f"order:{about['group']}", []):
        yield f"attach read the order {got.order}"


def detach(step: Step) -> Iterator[str]:
    about = step.action.about
    left = step.before.record(about["id"]).get("listeners", "").split()
    left = [gateway for gateway in left if gateway != about["gateway"]]
    yield from says(step, len(left))
    yield from only(step, f"request:{about['id']}")
    if step.before.record(about["id"]):
        yield from has(step, about["id"], listeners=" ".join(left))
    else:
        yield from kept(step, "a detach from nothing")


def restore(step: Step) -> Iterator[str]:
    about = step.action.about
    sequence_id, shown, log = about["id"], about["shown"], step.before.log(about["id"])
    fields = step.before.record(sequence_id)
    if any(a != b for a, b in zip(log, shown, strict=False)):
        yield from refused(step, "contradiction")
        return
    missing = shown[len(log) :] if fields.get("state") not in FINAL else []
    if fields and not missing:
        yield from refused(step, "intact")
        return
    yield from says(step, "restored")
    if step.after.log(sequence_id) != [*log, *missing]:
        yield f"the log of {sequence_id} is not what was shown"
    if fields:
        yield from only(step, f"tokens:{sequence_id}")
    else:
        due = {"state": "waiting", "attempt": 0, "engine": "", "listeners": about["gateway"], "strikes": 0}
        yield from has(step, sequence_id, arrival=int(step.before.get("arrival", 0)) + 1, **due)


RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        acquire, renew, resign, submit, dispatch, commit, reassign, end, attach, detach, restore,
        presence.join_engine, presence.beat_engine, presence.drain_engine, presence.report_engine,
        presence.leave_engine, presence.ask_report, presence.trim_inbox,
        presence.change_settings,
        presence.join_gateway, presence.beat_gateway, presence.leave_gateway,
    )
}  # fmt: skip


def _answer_of(step: Step) -> Any:
    """A Submission compares as the pair it is."""
    return (step.answer.outcome, step.answer.group) if step.action.kind == "submit" else step.answer


def rules(step: Step) -> Iterator[str]:
    """What is wrong with a call's answer or effect, if anything."""
    if step.action.call is None or isinstance(step.answer, Exception):
        return
    plain = Step(step.before, step.action, _answer_of(step), step.after, step.heard, step.world)
    yield from RULES[step.action.call.script](plain)
    yield from _repeated(plain)


SAME_ANSWER = ("acquire", "submit", "commit", "dispatch")


def _repeated(step: Step) -> Iterator[str]:
    """A repeat after a success answers the same, as long as nothing took the ground away."""
    first = step.action.repeat_of
    succeeded = first == "()" or step.action.kind == "commit" or "'accepted'" in str(first)
    if first is None or step.action.kind not in SAME_ANSWER or not succeeded:
        return
    if step.action.kind == "dispatch":
        last = step.before.last_iteration(step.action.about["engine"])
        if last is None or last < step.action.about["descriptor"].iteration:
            return  # The engine's stream began anew.
    lost = step.answer in ("NotLeader", "LookupError") or step.world.lossy
    gone = (
        step.action.kind == "commit" and step.before.get(f"committed:{step.action.about['engine']}") is None
    )
    again = (
        f"Submission(outcome={step.answer[0]!r}, group={step.answer[1]!r})"
        if step.action.kind == "submit"
        else repr(step.answer)
    )
    if not lost and not gone and again != first:
        yield f"the repeat answered {again}, the first answer was {first}"
