"""The request pool's steps: submit, dispatch, commit, reassign, end, attach, detach, restore.

Each is one script of `lua/`, atomic and safe to repeat after a lost reply. The pool is the
single source of truth: every state change of a sequence happens here and nowhere else.
"""

import json
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Literal

from shared.channels.calls import Argument, Call
from shared.errors import DecodeError, NotLeader
from shared.keys import Keys
from shared.protocol.batch import BatchDescriptor
from shared.protocol.request import GenerationRequest
from shared.protocol.result import IterationResult
from shared.protocol.token import State
from shared.protocol.wire import decode, encode

IDEMPOTENCY_SECONDS = 24 * 3600
RECORDED_ITERATIONS = 2_000
EMPTY_TAG = "-"


@dataclass(frozen=True, slots=True)
class Submission:
    """What a submit came to."""

    outcome: Literal["accepted", "full", "known", "conflict"]
    group: str
    """The group that now answers: this one, or the idempotency key's earlier one."""


@dataclass(frozen=True, slots=True)
class Record:
    """One sequence's record, as the pool holds it. Times are seconds of the Redis clock."""

    request: GenerationRequest
    state: State
    arrival: int
    attempt: int
    engine: str
    strikes: int
    n_tokens: int
    """Tokens that count: the log's length, or fewer after a stop string."""
    finish_reason: str
    code: str
    message: str
    listeners: tuple[str, ...]
    times: dict[str, float]


@dataclass(frozen=True, slots=True)
class Attached:
    """A record and its log from an index on, read in one step."""

    record: Record
    entries: tuple[str, ...]
    order: tuple[int, ...]


def _text(value: Any) -> str:
    try:
        return value.decode() if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError:
        raise DecodeError("not UTF-8", value) from None


def parse_record(flat: Seq[Any], log_length: int) -> Record | None:
    """A record from HGETALL's flat reply, or None for a missing one.

    Raises:
        DecodeError: a field is missing or unreadable.
    """
    if not flat:
        return None
    fields = {_text(k): _text(v) for k, v in zip(flat[::2], flat[1::2], strict=True)}
    try:
        return _record(fields, log_length)
    except (KeyError, ValueError) as error:
        raise DecodeError(f"request record: {error}", repr(fields).encode()) from None


def _record(fields: dict[str, str], log_length: int) -> Record:
    counted = int(fields.get("n_tokens", -1))
    return Record(
        request=decode(GenerationRequest, fields["body"]),
        state=State(fields["state"]),
        arrival=int(fields["arrival"]),
        attempt=int(fields["attempt"]),
        engine=fields.get("engine", ""),
        strikes=int(fields.get("strikes", 0)),
        n_tokens=log_length if counted < 0 else min(counted, log_length),
        finish_reason=fields.get("finish_reason", ""),
        code=fields.get("code", ""),
        message=fields.get("message", ""),
        listeners=tuple(filter(None, fields.get("listeners", "").split(" "))),
        times={k[3:]: float(v) for k, v in fields.items() if k.startswith("at_")},
    )


def _fenced(reply: Any) -> Any:
    if isinstance(reply, bytes) and reply == b"FENCED":
        raise NotLeader("another scheduler leads")
    return reply


def submit(
    keys: Keys,
    *,
    requests: Seq[GenerationRequest],
    prompts: Seq[Seq[int]],
    gateway_id: str,
    max_queue: int,
    record_ttl: float,
    idempotency: str = "",
    fingerprint: str = "",
    replaces: str = "",
) -> Call[Submission]:
    """Accept a group of sequences, or none of them.

    An id that exists is a success. A group that would lift the open sequences over `max_queue`
    is refused and binds no key. A known idempotency key answers with its group, unless that is
    `replaces`: a group the caller has seen end `cancelled` or `failed`.
    """
    group = requests[0].group

    def parse(reply: Any) -> Submission:
        outcome, of = json.loads(reply)
        return Submission(outcome, of)

    pool = (keys.open, keys.arrival, keys.inbox, keys.groups, keys.totals)
    args: list[Argument] = [
        group,
        gateway_id,
        max_queue,
        int(record_ttl),
        "1" if idempotency else "",
        fingerprint,
        replaces,
        IDEMPOTENCY_SECONDS,
        len(requests),
        len(prompts),
        sum(map(len, prompts)),
    ]
    args += [json.dumps(list(prompt), separators=(",", ":")) for prompt in prompts]
    for request in requests:
        args += [request.id, encode(request), request.choice, request.prompt_index]
    return Call(
        "submit",
        (
            *pool,
            keys.idempotency(idempotency or EMPTY_TAG),
            *(keys.prompt(group, k) for k in range(len(prompts))),
            *(keys.request(r.id) for r in requests),
        ),
        tuple(args),
        parse,
    )


def dispatch(
    keys: Keys, *, fence: str, engine_id: str, descriptor: BatchDescriptor, trim_before: int = 0
) -> Call[tuple[str, ...]]:
    """Send one iteration to an engine.

    Returns the members that the pool refuses (ended, moved, another attempt); if there are any,
    nothing was sent. `trim_before` drops descriptors of returned iterations.

    Raises:
        NotLeader: the fence is not the pool's.
        LookupError: the engine is gone.
    """

    def parse(reply: Any) -> tuple[str, ...]:
        _fenced(reply)
        if reply == b"GONE":
            raise LookupError(engine_id)
        return tuple(_text(member) for member in reply)

    members = descriptor.entries
    args: list[Argument] = [
        fence,
        engine_id,
        descriptor.iteration,
        encode(descriptor),
        trim_before,
        keys.events_prefix,
    ]
    for entry in members:
        args += [entry.id, entry.attempt, entry.kind]
    return Call(
        "dispatch",
        (
            keys.leader,
            keys.batches(engine_id),
            keys.totals,
            *tuple(keys.request(entry.id) for entry in members),
        ),
        tuple(args),
        parse,
    )


def commit(
    keys: Keys, *, result: IterationResult, engine_name: str, groups: Seq[tuple[str, int]]
) -> Call[dict[str, bool]]:
    """Write an iteration's tokens, once: ends, events, the inbox entry, the record, the totals.

    `groups` names each output's group and prompt index, in order. A repeat returns the stored
    answer. The answer maps each member to whether its token was accepted; a member that has
    ended, moved or is ahead of its log is refused and counted as a stale write.
    """

    def parse(reply: Any) -> dict[str, bool]:
        return {member: bool(accepted) for member, accepted in json.loads(reply).items()}

    per_member: list[str] = []
    for output, (group, prompt_index) in zip(result.outputs, groups, strict=True):
        per_member += [
            keys.request(output.id),
            keys.tokens(output.id),
            keys.order(group),
            keys.prompt(group, prompt_index),
        ]
    pool = (keys.committed(result.engine), keys.open, keys.inbox, keys.groups, keys.totals)
    return Call(
        "commit",
        (*pool, keys.iterations(engine_name), keys.gauges, *per_member),
        (encode(result), keys.events_prefix, engine_name, RECORDED_ITERATIONS),
        parse,
    )


def reassign(
    keys: Keys, *, fence: str, sequence_id: str, engine_id: str, attempt: int, strike: bool = False
) -> Call[bool]:
    """Let a sequence wait again, with prompt and log as its input, under the next attempt.

    Only from this engine and attempt; False when the record says otherwise. `strike` counts a
    death that the sequence may have caused.

    Raises:
        NotLeader: the fence is not the pool's.
    """
    return Call(
        "reassign",
        (keys.leader, keys.request(sequence_id), keys.inbox, keys.totals),
        (fence, sequence_id, engine_id, attempt, int(strike), keys.events_prefix),
        lambda reply: bool(int(_fenced(reply))),
    )


def end(
    keys: Keys,
    *,
    request: GenerationRequest,
    outcome: State,
    finish_reason: str = "",
    code: str = "",
    message: str = "",
    n_tokens: int | None = None,
    only_if: State | None = None,
    fence: str = "",
) -> Call[State | None]:
    """End a sequence: cancel, completion by a stop string, time-out or failure.

    Returns the state the record had before, or None for an unknown id. A final state stays, but
    `n_tokens` may still lower the count of a `completed` one. Works on a full server.

    Raises:
        NotLeader: a fence was given and is not the pool's.
    """

    def parse(reply: Any) -> State | None:
        before = _text(_fenced(reply) or b"")
        # A damaged record's state says nothing; the sequence has ended all the same.
        return State(before) if before in frozenset(State) else None

    sequence_id = request.id
    return Call(
        "end",
        (
            keys.leader,
            keys.request(sequence_id),
            keys.tokens(sequence_id),
            keys.order(request.group),
            keys.prompt(request.group, request.prompt_index),
            keys.open,
            keys.inbox,
            keys.groups,
            keys.totals,
        ),
        (
            sequence_id,
            outcome.value,
            finish_reason,
            code,
            message,
            -1 if n_tokens is None else n_tokens,
            only_if.value if only_if else "",
            fence,
            keys.events_prefix,
        ),
        parse,
    )


def attach(
    keys: Keys, *, sequence_id: str, group: str, gateway_id: str, index: int = 0
) -> Call[Attached | None]:
    """Listen to a sequence and read its record and its log from `index` on, in one step.

    With an empty `gateway_id` it only reads. None for an unknown id.
    """

    def parse(reply: Any) -> Attached | None:
        flat, length, entries, order = reply
        record = parse_record(flat, int(length))
        if record is None:
            return None
        return Attached(record, tuple(map(_text, entries)), tuple(map(int, order)))

    return Call(
        "attach",
        (keys.request(sequence_id), keys.tokens(sequence_id), keys.order(group)),
        (gateway_id, index),
        parse,
    )


def detach(keys: Keys, *, sequence_id: str, gateway_id: str) -> Call[int]:
    """Stop listening; returns how many listeners are left."""
    return Call("detach", (keys.request(sequence_id),), (gateway_id,), int)


def restore(
    keys: Keys,
    *,
    request: GenerationRequest,
    prompt: Seq[int],
    shown: Seq[str],
    gateway_id: str,
    record_ttl: float,
) -> Call[Literal["intact", "restored", "contradiction"]]:
    """After Redis went back in time: the record if it is missing, and the shown log entries.

    The log is only ever continued: where it is no prefix of `shown` nor the other way round,
    nothing is written and the answer is `contradiction`.
    """
    group = request.group
    return Call(
        "restore",
        (
            keys.request(request.id),
            keys.tokens(request.id),
            keys.prompt(group, request.prompt_index),
            keys.open,
            keys.arrival,
            keys.inbox,
            keys.groups,
        ),
        (
            request.id,
            encode(request),
            json.dumps(list(prompt), separators=(",", ":")),
            gateway_id,
            int(record_ttl),
            group,
            request.prompt_index,
            request.choice,
            request.n_choices,
            *shown,
        ),
        _text,  # type: ignore[arg-type]
    )
