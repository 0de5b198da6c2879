"""The steps that actors can take: each builds the real call from what the actor knows.

Arguments may be out of date on purpose: a call prepared before somebody else's step is the same as
one that names an older fence, attempt, engine or index. Knows no laws.
"""

from collections.abc import Sequence as Seq
from typing import Any

from shared.channels import inbox, lease, presence, request_pool, runtime_settings
from shared.channels.calls import Call
from shared.protocol.batch import BatchDescriptor, ContinuingEntry, Entry, FirstEntry
from shared.protocol.request import GenerationRequest
from shared.protocol.result import EngineReport, EngineStatus, GatewayStatus, IterationResult, SequenceOutput
from shared.protocol.settings import RuntimeSettings
from shared.protocol.token import State
from tests.explorer.model import KEYS, PROMPT, Action, View, World, entry

TTL = 600


def _step(actor: str, what: str, call: Call[Any], kind: str = "", **about: Any) -> Action:
    return Action(f"{actor}: {what}", actor, kind or call.script, call, about=about)


def repeat(action: Action, first_answer: str) -> Action:
    """The same call again, because its reply was lost."""
    return Action(
        f"{action.label} (again: the reply was lost)",
        action.actor,
        action.kind,
        action.call,
        about=action.about,
        repeat_of=first_answer,
    )


# Gateways


def submit(
    actor: str,
    requests: Seq[GenerationRequest],
    *,
    max_queue: int = 10,
    idempotency: str = "",
    fingerprint: str = "",
    replaces: str = "",
) -> Action:
    n_prompts = 1 + max(r.prompt_index for r in requests)
    call = request_pool.submit(
        KEYS,
        requests=requests,
        prompts=[PROMPT] * n_prompts,
        gateway_id=actor,
        max_queue=max_queue,
        record_ttl=TTL,
        idempotency=idempotency,
        fingerprint=fingerprint,
        replaces=replaces,
    )
    what = f"submit {requests[0].group}" + (f" as {idempotency}/{fingerprint}" if idempotency else "")
    what += f" replacing {replaces}" if replaces else ""
    about: dict[str, Any] = {"requests": tuple(requests), "gateway": actor, "max_queue": max_queue}
    about |= {"n_prompts": n_prompts, "idempotency": idempotency, "fingerprint": fingerprint}
    return _step(actor, what, call, replaces=replaces, **about)


def end(
    actor: str,
    request: GenerationRequest,
    outcome: State,
    *,
    n_tokens: int | None = None,
    only_if: State | None = None,
    fence: str = "",
) -> Action:
    reason, code = ("stop", "") if outcome is State.COMPLETED else ("", "request_cancelled")
    call = request_pool.end(
        KEYS,
        request=request,
        outcome=outcome,
        finish_reason=reason,
        code=code,
        n_tokens=n_tokens,
        only_if=only_if,
        fence=fence,
    )
    what = f"end {request.id} {outcome.value}"
    what += "" if n_tokens is None else f" with {n_tokens} tokens"
    what += f" only if {only_if.value}" if only_if else ""
    what += f" under fence {fence}" if fence else ""
    about: dict[str, Any] = {"id": request.id, "outcome": outcome.value, "n_tokens": n_tokens}
    only = only_if.value if only_if else ""
    return _step(actor, what, call, only_if=only, fence=fence, reason=reason, code=code, **about)


def attach(actor: str, sequence_id: str, index: int = 0, *, listen: bool = True) -> Action:
    gateway, group = actor if listen else "", sequence_id.partition(".")[0]
    call = request_pool.attach(KEYS, sequence_id=sequence_id, group=group, gateway_id=gateway, index=index)
    what = f"{'attach to' if listen else 'read'} {sequence_id} from {index}"
    return _step(actor, what, call, id=sequence_id, gateway=gateway, index=index, group=group)


def detach(actor: str, sequence_id: str) -> Action:
    call = request_pool.detach(KEYS, sequence_id=sequence_id, gateway_id=actor)
    return _step(actor, f"detach from {sequence_id}", call, id=sequence_id, gateway=actor)


def restore(actor: str, request: GenerationRequest, n_shown: int, *, wrong: bool = False) -> Action:
    shown = [entry(request.id, i + (50 if wrong else 0)) for i in range(n_shown)]
    call = request_pool.restore(
        KEYS, request=request, prompt=PROMPT, shown=shown, gateway_id=actor, record_ttl=TTL
    )
    what = f"restore {request.id} with {n_shown} {'other ' if wrong else ''}tokens shown"
    return _step(actor, what, call, id=request.id, request=request, shown=shown, gateway=actor)


def join_gateway(actor: str) -> Action:
    return _step(actor, "join", presence.join_gateway(KEYS, GatewayStatus(id=actor, url="http://x")))


def beat_gateway(actor: str) -> Action:
    return _step(actor, "beat", presence.beat_gateway(KEYS, actor))


def leave_gateway(actor: str) -> Action:
    return _step(actor, "leave", presence.leave_gateway(KEYS, actor))


def change_settings(actor: str, changes: RuntimeSettings) -> Action:
    call = runtime_settings.change(KEYS, changes)
    return _step(actor, f"change {changes!r}", call, changes=changes.model_dump(exclude_unset=True))


# Schedulers


def acquire(actor: str, token: str = "") -> Action:
    token = token or f"{actor}-token"
    return _step(actor, f"acquire with {token}", lease.acquire(KEYS, token=token), token=token)


def renew(actor: str, fence: str) -> Action:
    return _step(actor, f"renew {fence}", lease.renew(KEYS, fence=fence), lead=fence)


def resign(actor: str, fence: str) -> Action:
    return _step(actor, f"resign {fence}", lease.resign(KEYS, fence=fence), lead=fence)


def first(request: GenerationRequest, view: View, attempt: int) -> FirstEntry:
    """A member that the engine does not hold: prompt and log as the pool has them now."""
    made = tuple(range(len(view.log(request.id))))
    return FirstEntry(
        id=request.id,
        attempt=attempt,
        group=request.group,
        prompt_index=request.prompt_index,
        tokens=PROMPT + made,
        n_prompt=len(PROMPT),
        reserved_slots=request.reserved_slots,
        sampling=request.sampling,
    )


def continuing(request: GenerationRequest, attempt: int, index: int) -> ContinuingEntry:
    position = len(PROMPT) + index - 1
    return ContinuingEntry(id=request.id, attempt=attempt, last_token=0, position=position, index=index)


def dispatch(
    actor: str, fence: str, engine: str, number: int, members: Seq[Entry], *, trim_before: int = 0
) -> Action:
    descriptor = BatchDescriptor(iteration=number, fence=fence, entries=tuple(members))
    call = request_pool.dispatch(
        KEYS, fence=fence, engine_id=engine, descriptor=descriptor, trim_before=trim_before
    )
    who = ", ".join(f"{m.id} attempt {m.attempt} {m.kind} for {m.index}" for m in members)
    what = f"dispatch {engine} iteration {number} [{who}] under {fence}" + f", trim {trim_before}" * bool(
        trim_before
    )
    return _step(actor, what, call, fence=fence, engine=engine, descriptor=descriptor, trim=trim_before)


def reassign(
    actor: str, fence: str, sequence_id: str, engine: str, attempt: int, *, strike: bool = False
) -> Action:
    call = request_pool.reassign(
        KEYS, fence=fence, sequence_id=sequence_id, engine_id=engine, attempt=attempt, strike=strike
    )
    what = f"reassign {sequence_id} from {engine} attempt {attempt} under {fence}" + " with a strike" * strike
    about: dict[str, Any] = {"id": sequence_id, "engine": engine, "attempt": attempt, "strike": strike}
    return _step(actor, what, call, fence=fence, **about)


def ask_report(actor: str, fence: str, engine: str) -> Action:
    call = presence.ask_report(KEYS, engine, fence)
    return _step(actor, f"ask {engine} for its report under {fence}", call, fence=fence, engine=engine)


def bury_engine(actor: str, fence: str, engine: str) -> Action:
    call = presence.leave_engine(KEYS, engine, fence)
    return _step(actor, f"declare {engine} lost under {fence}", call, fence=fence, engine=engine)


def trim_inbox(actor: str, fence: str, view: View, keep: int) -> Action:
    before = view.inbox_ids[-keep] if len(view.inbox_ids) >= keep else "0-0"
    call = inbox.trim(KEYS, fence=fence, before=before)
    return _step(actor, f"trim the inbox to {keep} under {fence}", call, fence=fence, before=before)


# Engines


def status(engine: str, *, draining: bool = False) -> EngineStatus:
    name = presence.name_of(engine)
    return EngineStatus(id=engine, name=name, n_slots=100, max_model_len=100, draining=draining)


def join_engine(engine: str) -> Action:
    return _step(engine, "join", presence.join_engine(KEYS, status(engine)), engine=engine)


def beat_engine(engine: str, progress: int = 3) -> Action:
    return _step(
        engine, "beat", presence.beat_engine(KEYS, engine, progress), engine=engine, progress=progress
    )


def drain_engine(engine: str) -> Action:
    return _step(engine, "drain", presence.drain_engine(KEYS, status(engine, draining=True)), engine=engine)


def report_engine(engine: str) -> Action:
    report = EngineReport(fence="1:t", status=status(engine), last_iteration=1, held=())
    return _step(engine, "report", presence.report_engine(KEYS, report), engine=engine)


def leave_engine(engine: str) -> Action:
    return _step(engine, "leave", presence.leave_engine(KEYS, engine), engine=engine, fence="")


def commit(
    engine: str, descriptor: BatchDescriptor, requests: dict[str, GenerationRequest], *, fail: bool = False
) -> Action:
    """The result of one iteration: for each member the right token for the index it was asked for."""
    outputs = []
    for member in descriptor.entries:
        last = member.index + 1 >= requests[member.id].sampling.max_new_tokens
        outputs.append(
            SequenceOutput(
                id=member.id,
                attempt=member.attempt,
                index=member.index,
                token=None if fail else member.index,
                entry="" if fail else entry(member.id, member.index),
                finish_reason="length" if last and not fail else "",
                code="internal_error" if fail else "",
            )
        )
    record = "{}" if outputs else ""
    result = IterationResult(
        engine=engine, iteration=descriptor.iteration, outputs=tuple(outputs), record=record
    )
    groups = [(requests[o.id].group, requests[o.id].prompt_index) for o in outputs]
    call = request_pool.commit(KEYS, result=result, engine_name=presence.name_of(engine), groups=groups)
    what = f"commit iteration {descriptor.iteration}" + ", its member failed" * fail
    return _step(engine, what, call, engine=engine, result=result)


# The world


def lapse(what: str, *names: str) -> Action:
    """Keys whose lifetime ended."""
    commands = tuple(("DEL", name) for name in names)
    return Action(f"world: {what}", "world", "lapse", commands=commands)


def lose_record(request: GenerationRequest) -> Action:
    """The server went back to before this request was submitted."""
    names = (KEYS.request(request.id), KEYS.tokens(request.id), KEYS.prompt(request.group, 0))
    commands: tuple[tuple[Any, ...], ...] = (
        ("DEL", *names),
        ("ZREM", KEYS.open, request.id),
        ("HDEL", KEYS.groups, request.group, f"{request.group}/{request.prompt_index}"),
    )
    return Action(f"world: {request.id} is lost", "world", "lose", commands=commands)


def lose_tail(sequence_id: str) -> Action:
    """The server went back to before the last token was committed."""
    commands = (("RPOP", KEYS.tokens(sequence_id)),)
    return Action(f"world: the last token of {sequence_id} is lost", "world", "lose", commands=commands)


def lost_replies(world: World) -> list[Action]:
    """Every actor may repeat its last call."""
    return [repeat(action, answer) for action, answer in world.last.values()]
