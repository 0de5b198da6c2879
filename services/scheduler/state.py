"""What the scheduler knows between two decisions, and how each event changes it.

Pure: no Redis, no clock, no await. `hear` takes one event and returns what must be done in the
pool because of it; `decide` says what an engine runs next and changes nothing; `scheduled` books
a decision that was dispatched. Every event may come twice, late or for something long gone.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from operator import itemgetter

from services.scheduler.effects import AskReport, Decision, Effect, Fail, Reassign, Refresh
from services.scheduler.placement import Placement
from services.scheduler.selection import Select, select
from services.scheduler.sequence import Order, Sequence
from services.scheduler.slots import EngineLedger
from shared.channels.runtime_settings import parse as parse_settings
from shared.errors import ErrorCode
from shared.protocol.batch import Waiting
from shared.protocol.inbox import (
    Ended,
    EngineDraining,
    EngineJoined,
    EngineLeft,
    InboxEvent,
    Output,
    Reassigned,
    Reported,
    Returned,
    SettingsChanged,
    Submitted,
    Tick,
)
from shared.protocol.request import GenerationRequest
from shared.protocol.result import EngineReport, EngineStatus
from shared.protocol.settings import RuntimeSettings
from shared.protocol.token import State
from shared.protocol.wire import decode

RECORDED_WAITING = 32


class SchedulerState:
    """All unfinished sequences and all engines of one model."""

    def __init__(
        self,
        *,
        max_batch_size: int = 16,
        select: Select = select,
        queue_timeout: float = 0.0,
        fence: str = "",
        now: float = 0.0,
    ) -> None:
        self.max_batch_size = max_batch_size
        self._started_with = max_batch_size, queue_timeout
        self.fence = fence
        self.now = now
        """The last tick's time, in seconds of the Redis clock."""
        self.sequences: dict[str, Sequence] = {}
        self.engines: dict[str, EngineLedger] = {}
        self._select = select
        self._queue_timeout = queue_timeout
        self._waiting: list[tuple[Order, Sequence]] = []
        self._placement: Placement | None = None
        """None when something has happened that may change it."""

    # -- hearing

    def hear(self, event: InboxEvent) -> list[Effect]:
        """Take in one event."""
        if not isinstance(event, Submitted | Returned | Ended | Tick):
            self._placement = None
        match event:
            case Submitted():
                return self._submitted(event)
            case Ended():
                return self._forget(event.id)
            case Returned():
                return self._returned(event)
            case Reassigned():
                return self._reassigned(event)
            case EngineJoined():
                return self.join(event.status)
            case EngineDraining():
                return self._drain(event.engine)
            case EngineLeft():
                return self._left(event.engine)
            case Reported():
                return self._reported(event)
            case Tick():
                return self._tick(event.now)
            case SettingsChanged():
                return self._change(parse_settings(event.fields))

    def _change(self, settings: RuntimeSettings) -> list[Effect]:
        """From the next decision on; what is not set is as it was at the start."""
        max_batch_size, queue_timeout = self._started_with
        self.max_batch_size = max_batch_size if settings.max_batch_size is None else settings.max_batch_size
        self._queue_timeout = queue_timeout if settings.queue_timeout is None else settings.queue_timeout
        return []

    def _submitted(self, event: Submitted) -> list[Effect]:
        if event.id in self.sequences:
            return []
        request = decode(GenerationRequest, event.request)
        sequence = Sequence(request=request, arrival=event.arrival, since=self.now)
        self.add_waiting(sequence)
        return self._never_fits([sequence])

    def _forget(self, sequence_id: str) -> list[Effect]:
        sequence = self.sequences.pop(sequence_id, None)
        if sequence is not None:
            self._detach(sequence)
        return []

    def _returned(self, event: Returned) -> list[Effect]:
        ledger = self.engines.get(event.engine)
        if ledger is None:
            return []
        # Before its report an engine still returns what an earlier leader dispatched.
        if ledger.ready and ledger.in_flight.pop(event.iteration, None) is None:
            return []
        effects: list[Effect] = []
        for output in event.outputs:
            sequence = self.sequences.get(output.id)
            if sequence is not None and sequence.engine == event.engine:
                effects += self._advance(sequence, output)
        if ledger.status.draining:
            effects += self._hand_over(ledger)
        return effects

    def _advance(self, sequence: Sequence, output: Output) -> list[Effect]:
        if output.attempt != sequence.attempt:
            return []
        sequence.in_flight = False
        if output.ended:
            return self._forget(sequence.id)
        if not output.accepted:
            return [Refresh(sequence.id)]
        sequence.has_kv = True
        if output.token is not None and output.index >= sequence.n_output:
            sequence.n_output = output.index + 1
            sequence.last_token = output.token
        return []

    def _reassigned(self, event: Reassigned) -> list[Effect]:
        sequence = self.sequences.get(event.id)
        known = sequence is None or sequence.attempt >= event.attempt
        return [] if known else [Refresh(event.id)]

    def join(self, status: EngineStatus) -> list[Effect]:
        """An engine is there; it gets nothing before it has reported."""
        self._placement = None
        known = self.engines.get(status.id)
        if known is not None:
            known.status = status
            return [] if known.ready else [AskReport(status.id)]
        self.engines[status.id] = EngineLedger(status)
        return [AskReport(status.id)]

    def _drain(self, engine_id: str) -> list[Effect]:
        ledger = self.engines.get(engine_id)
        if ledger is None:
            return []
        ledger.status = ledger.status.model_copy(update={"draining": True})
        return self._hand_over(ledger)

    def _hand_over(self, ledger: EngineLedger) -> list[Effect]:
        """Move a draining engine's idle sequences that fit elsewhere; the others end there."""
        room = max((load.n_slots for load in self._loads()), default=0)
        return [
            Reassign(s.id, s.engine, s.attempt)
            for s in ledger.held()
            if not s.in_flight and s.reserved_slots <= room
        ]

    def _left(self, engine_id: str) -> list[Effect]:
        ledger = self.engines.pop(engine_id, None)
        effects: list[Effect] = []
        if ledger is not None:
            effects += [Reassign(s.id, engine_id, s.attempt) for s in ledger.held()]
        return effects + self._never_fits(s for _, s in self._waiting)

    def _reported(self, event: Reported) -> list[Effect]:
        report = decode(EngineReport, event.report)
        ledger = self.engines.get(event.engine)
        if ledger is None or ledger.ready or report.fence != self.fence:
            return []
        ledger.status, ledger.ready = report.status, True
        effects: list[Effect] = []
        assigned = {s.id: s for s in self.sequences.values() if s.engine == event.engine}
        for held in report.held:
            sequence = assigned.get(held.id)
            if sequence and sequence.attempt == held.attempt and held.n_kv == _kv_of_known(sequence):
                ledger.admit(assigned.pop(held.id))
                sequence.has_kv = True
            else:
                ledger.releases.append(held.id)
        effects += [Reassign(s.id, event.engine, s.attempt) for s in assigned.values()]
        if ledger.status.draining:
            effects += self._hand_over(ledger)
        return effects + self._never_fits(s for _, s in self._waiting)

    def _tick(self, now: float) -> list[Effect]:
        self.now = now
        effects: list[Effect] = []
        for sequence in self.sequences.values():
            waited, limit = now - sequence.since, sequence.request.timeout_seconds
            if limit is not None and waited >= limit:
                message = f"the request did not end within its timeout_seconds of {limit:g}"
                effects.append(Fail(sequence.request, ErrorCode.REQUEST_TIMEOUT, message))
            elif self._queue_timeout and waited >= self._queue_timeout and self._never_ran(sequence):
                message = f"the request waited longer than {self._queue_timeout:g} s; try again later"
                effects.append(Fail(sequence.request, ErrorCode.QUEUE_TIMEOUT, message, State.WAITING))
        # Also those that came back from an engine larger than any that is left.
        return effects + self._never_fits(s for _, s in self._waiting)

    @staticmethod
    def _never_ran(sequence: Sequence) -> bool:
        return not sequence.engine and not sequence.n_output

    def _never_fits(self, sequences: "Iterator[Sequence] | list[Sequence]") -> list[Effect]:
        """Refuse what no live engine could ever hold: it would block the head of the line for ever."""
        room = max((ledger.n_slots for ledger in self.engines.values()), default=None)
        if room is None:
            return []
        message = "the request needs {} K/V slots (prompt and answer), and no engine has more than {}"
        return [
            Fail(s.request, ErrorCode.NEVER_FITS, message.format(s.reserved_slots, room), State.WAITING)
            for s in sequences
            if s.reserved_slots > room
        ]

    # -- bookkeeping of records

    def add_waiting(self, sequence: Sequence) -> None:
        """A sequence waits for its first or its next engine."""
        self.sequences[sequence.id] = sequence
        at = bisect_left(self._waiting, sequence.order, key=_BY_ORDER)
        self._waiting.insert(at, (sequence.order, sequence))
        if self._placement is not None and at < self._placement.walked:
            self._placement = None

    def add_running(self, sequence: Sequence, engine: str) -> None:
        """A sequence runs on an engine, as its record says; the engine's report decides."""
        self.sequences[sequence.id] = sequence
        sequence.engine = engine

    def moved(self, sequence_id: str, *, attempt: int, n_output: int, last_token: int) -> None:
        """A sequence waits again under a new attempt."""
        sequence = self.sequences.get(sequence_id)
        if sequence is None:
            return
        self._detach(sequence)
        sequence.attempt, sequence.n_output, sequence.last_token = attempt, n_output, last_token
        self.add_waiting(sequence)

    def forget(self, sequence_id: str) -> None:
        """A sequence has ended, or its record is gone."""
        self._forget(sequence_id)

    def _detach(self, sequence: Sequence) -> None:
        """Take a sequence out of the waiting line or off its engine."""
        ledger = self.engines.get(sequence.engine)
        if ledger is not None:
            ledger.release(sequence)
        sequence.engine, sequence.has_kv, sequence.in_flight = "", False, False
        self._leave_line(sequence)
        self._placement = None

    def _leave_line(self, sequence: Sequence) -> None:
        at = bisect_left(self._waiting, sequence.order, key=_BY_ORDER)
        if at < len(self._waiting) and self._waiting[at][1] is sequence:
            del self._waiting[at]

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    # -- deciding

    def decide(self, engine_id: str) -> Decision | None:
        """What an engine runs next, or None: lines 1 and 9-10 of Algorithm 1's main loop.

        It is None while all its workers have a batch, and when there is nothing to run and
        nothing to release: then the scheduler waits for a return or an arrival.
        """
        ledger = self.engines[engine_id]
        if not ledger.ready or ledger.n_scheduled >= ledger.n_workers:
            return None
        selection = self._select(
            [s for s in ledger.held() if not s.in_flight],
            self._placed().on(engine_id),
            max_batch_size=min(self.max_batch_size, ledger.status.max_batch_size),
            n_slots=ledger.n_slots,
            n_reserved=ledger.n_reserved,
        )
        if not selection.members and (not ledger.releases or ledger.in_flight):
            return None
        waiting, total = self._not_taken(selection.members, selection.stopped_by)
        return Decision(
            engine=engine_id,
            iteration=ledger.next_iteration,
            members=selection.members,
            releases=tuple(ledger.releases),
            n_reserved=selection.n_reserved,
            batches_in_flight=ledger.n_scheduled + 1,
            waiting=waiting,
            waiting_total=total,
            trim_before=min(ledger.in_flight, default=ledger.next_iteration),
        )

    def scheduled(self, decision: Decision) -> None:
        """Book a dispatched decision: its members are RUNNING now."""
        ledger = self.engines[decision.engine]
        for sequence in decision.members:
            if not sequence.engine:
                self._leave_line(sequence)
                if self._placement is not None and not self._placement.admitted(sequence, ledger.engine_id):
                    self._placement = None
                ledger.admit(sequence)
            sequence.in_flight = True
        ledger.in_flight[decision.iteration] = tuple(s.id for s in decision.members)
        ledger.next_iteration = decision.iteration + 1
        del ledger.releases[: len(decision.releases)]

    def _placed(self) -> Placement:
        if self._placement is None:
            self._placement = Placement(self._loads(), self._waiting)
        return self._placement

    def _loads(self) -> list[EngineLedger]:
        return [e for e in self.engines.values() if e.ready and not e.status.draining]

    def _not_taken(self, members: tuple[Sequence, ...], reason: str) -> tuple[tuple[Waiting, ...], int]:
        taken = {s.id for s in members}
        first: list[Waiting] = []
        for _, sequence in self._waiting[: RECORDED_WAITING + len(taken)]:
            if sequence.id not in taken and len(first) < RECORDED_WAITING:
                first.append(Waiting(id=sequence.id, reason=reason or "placed_elsewhere"))
        total = len(self._waiting) - sum(1 for s in members if not s.engine)
        return tuple(first), total


_BY_ORDER: Callable[[tuple[Order, Sequence]], Order] = itemgetter(0)


def _kv_of_known(sequence: Sequence) -> int:
    """K/V rows for all known tokens but the last; none can be adopted before the first token."""
    return sequence.request.n_prompt + sequence.n_output - 1 if sequence.n_output else -1
