"""Carrying out what events demand of the pool, and rebuilding the state from it.

Everything here reads records and runs fenced steps; none of it decides who runs. The same
reassign serves a lost engine, a draining one and a new leader that cannot adopt.
"""

import logging
from typing import Any

from services.scheduler.effects import AskReport, Effect, Fail, Reassign, Refresh
from services.scheduler.sequence import Sequence
from services.scheduler.state import SchedulerState
from shared.channels import presence
from shared.channels.calls import Pool
from shared.channels.request_pool import Attached, attach, end, reassign
from shared.errors import DecodeError
from shared.keys import Keys
from shared.protocol.result import EngineStatus
from shared.protocol.token import State, TokenEntry
from shared.protocol.wire import decode

LOG = logging.getLogger(__name__)


class Recovery:
    """Keeps one leader's state and the pool in step."""

    def __init__(self, pool: Pool, keys: Keys, state: SchedulerState) -> None:
        self._pool = pool
        self._keys = keys
        self._state = state

    def carry_out(self, effect: Effect) -> None:
        """Do what an event demands; safe to repeat.

        Raises:
            NotLeader: another scheduler leads.
            DecodeError: a record cannot be read.
        """
        match effect:
            case AskReport():
                self._ask(effect.engine)
            case Refresh():
                self.refresh(effect.id)
            case Reassign():
                self._reassign(effect)
            case Fail():
                self._fail(effect)

    def rebuild(self) -> None:
        """Read every open sequence and every present engine into an empty state."""
        ids: Any = self._pool.client.zrange(self._keys.open, 0, -1)
        for raw in ids:
            self._load(raw.decode())
        for status in self.present_engines():
            for effect in self._state.join(status):
                self.carry_out(effect)
        for sequence in list(self._state.sequences.values()):
            if sequence.engine and sequence.engine not in self._state.engines:
                self._reassign(Reassign(sequence.id, sequence.engine, sequence.attempt))

    def refresh(self, sequence_id: str) -> None:
        """Believe the record rather than what was known of a sequence."""
        known = self._state.sequences.get(sequence_id)
        found = self._read(sequence_id)
        if found is None or found.record.state.ended:
            self._state.forget(sequence_id)
        elif found.record.state is State.RUNNING:
            self._reassign(Reassign(sequence_id, found.record.engine, found.record.attempt))
        elif known is None:
            self._load(sequence_id)
        else:
            self._moved(sequence_id, found)

    def present_engines(self) -> list[EngineStatus]:
        """The engines whose presence stands; others in the index are forgotten."""
        names: Any = self._pool.client.smembers(self._keys.engines)
        engine_ids = sorted(name.decode() for name in names)
        present = []
        for engine_id in engine_ids:
            payload: Any = self._pool.client.get(self._keys.engine(engine_id))
            if payload is None:
                self.lose(engine_id)
                continue
            try:
                present.append(decode(EngineStatus, payload))
            except DecodeError as error:
                LOG.warning("unreadable engine presence: %s", error, extra={"engine_id": engine_id})
        return present

    def lose(self, engine_id: str, reason: str = "its presence lapsed") -> None:
        """Declare an engine lost; the inbox event that follows frees its sequences."""
        LOG.warning("engine lost: %s", reason, extra={"engine_id": engine_id})
        self._pool.run(presence.leave_engine(self._keys, engine_id, self._state.fence))

    def _ask(self, engine_id: str) -> None:
        try:
            number = self._pool.run(presence.ask_report(self._keys, engine_id, self._state.fence))
        except LookupError:
            self.lose(engine_id)
            return
        ledger = self._state.engines.get(engine_id)
        if ledger is not None:
            ledger.next_iteration = number + 1

    def _reassign(self, effect: Reassign) -> None:
        call = reassign(
            self._keys,
            fence=self._state.fence,
            sequence_id=effect.id,
            engine_id=effect.engine,
            attempt=effect.attempt,
        )
        self._pool.run(call)
        found = self._read(effect.id)
        if found is None or found.record.state.ended:
            self._state.forget(effect.id)
        elif effect.id in self._state.sequences:
            self._moved(effect.id, found)

    def _fail(self, effect: Fail) -> None:
        call = end(
            self._keys,
            request=effect.request,
            outcome=State.FAILED,
            code=effect.code.value,
            message=effect.message,
            only_if=effect.only_if,
            fence=self._state.fence,
        )
        before = self._pool.run(call)
        ended = before is None or before.ended or effect.only_if in (None, before)
        if ended:
            self._state.forget(effect.request.id)
        else:
            self.refresh(effect.request.id)

    def _moved(self, sequence_id: str, found: Attached) -> None:
        self._state.moved(
            sequence_id,
            attempt=found.record.attempt,
            n_output=len(found.entries),
            last_token=_last_token(found),
        )

    def _read(self, sequence_id: str) -> Attached | None:
        call = attach(self._keys, sequence_id=sequence_id, group=sequence_id, gateway_id="")
        return self._pool.run(call)

    def _load(self, sequence_id: str) -> None:
        try:
            found = self._read(sequence_id)
            last_token = _last_token(found) if found else 0
        except DecodeError as error:
            LOG.error("unreadable record: %s", error, extra={"request_id": sequence_id})
            return
        if found is None or found.record.state.ended:
            self._pool.client.zrem(self._keys.open, sequence_id)
            return
        record = found.record
        sequence = Sequence(
            request=record.request,
            arrival=record.arrival,
            since=record.times.get("submitted", self._state.now),
            attempt=record.attempt,
            n_output=len(found.entries),
            last_token=last_token,
        )
        if record.state is State.RUNNING:
            self._state.add_running(sequence, record.engine)
        else:
            self._state.add_waiting(sequence)


def _last_token(found: Attached) -> int:
    return decode(TokenEntry, found.entries[-1]).token if found.entries else 0
