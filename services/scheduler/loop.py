"""The scheduler's loop: hear, select, dispatch; nothing else.

After every single iteration it is decided anew who runs. The loop blocks on its inbox, so an
idle stack costs nothing; the decisions themselves are in `state.py` and `selection.py`.
"""

import logging
import time
from collections import deque
from typing import Any

from services.scheduler.dispatch import Dispatcher, PromptLost
from services.scheduler.effects import Effect, Fail
from services.scheduler.metrics import SchedulerMetrics
from services.scheduler.recovery import Recovery
from services.scheduler.state import SchedulerState
from services.scheduler.watchdog import Watchdog
from shared.channels import inbox, presence
from shared.channels.calls import Pool
from shared.errors import DecodeError, ErrorCode
from shared.keys import Keys
from shared.protocol.inbox import EngineLeft, InboxEvent, SettingsChanged, Tick

LOG = logging.getLogger(__name__)
TICK_SECONDS = 1.0


class IterationLoop:
    """One leader at work. Built anew for every lead."""

    def __init__(
        self,
        pool: Pool,
        keys: Keys,
        *,
        state: SchedulerState,
        dispatcher: Dispatcher,
        metrics: SchedulerMetrics,
    ) -> None:
        self._pool = pool
        self._keys = keys
        self._state = state
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._recovery = Recovery(pool, keys, state)
        self._watchdog = Watchdog()
        self._heard = "0-0"
        self._events: deque[InboxEvent] = deque()
        self._effects: deque[Effect] = deque()
        """Heard and demanded, not yet done: kept when Redis fails half-way, for it is read once."""
        self._next_tick = 0.0
        self._answering_since = time.monotonic()

    def start(self) -> None:
        """Rebuild from the pool. What arrives meanwhile is heard afterwards.

        Raises:
            NotLeader: another scheduler leads.
        """
        self._heard = inbox.last_entry(self._pool.client, self._keys)
        self._state.hear(Tick(now=self._redis_time()))
        self._read_settings()
        self._recovery.rebuild()
        LOG.info("took over %d open sequences", len(self._state.sequences))

    def _read_settings(self) -> None:
        """What was changed under an earlier leader holds on."""
        fields: Any = self._pool.client.hgetall(self._keys.settings)
        texts = [one.decode(errors="replace") for pair in fields.items() for one in pair]
        try:
            self._state.hear(SettingsChanged(fields=tuple(texts)))
        except DecodeError as error:
            inbox.bury(self._pool.client, self._keys, channel="settings", error=error)

    def run_iteration(self) -> None:
        """Hear what has happened, then let every engine with room run its next iteration."""
        self._hear()
        self._take_in()
        for engine_id in list(self._state.engines):
            while self._select_and_dispatch(engine_id):
                pass

    def pause(self) -> None:
        """Redis did not answer: from now on silence of an engine means nothing for a lease."""
        self._answering_since = time.monotonic()
        self._watchdog.forget()

    def _hear(self) -> None:
        wait = 0.0 if self._events or self._effects else max(0.0, self._next_tick - time.monotonic())
        self._heard, events = inbox.read(self._pool.client, self._keys, after=self._heard, block=wait)
        self._events += events
        if time.monotonic() >= self._next_tick:
            self._events.append(Tick(now=self._redis_time()))
            self._events += self._lost_engines()
            self._lose_stuck_engines()
            self._pool.run(inbox.trim(self._keys, fence=self._state.fence, before=self._heard))
            self._next_tick = time.monotonic() + TICK_SECONDS

    def _take_in(self) -> None:
        """Hear each event and do what it demands, before the next one."""
        while self._effects or self._events:
            try:
                if self._effects:
                    self._recovery.carry_out(self._effects[0])
                    self._effects.popleft()
                else:
                    self._effects += self._state.hear(self._events.popleft())
            except DecodeError as error:
                inbox.bury(self._pool.client, self._keys, channel="inbox", error=error)
                if self._effects:
                    self._effects.popleft()

    def _select_and_dispatch(self, engine_id: str) -> bool:
        """One decision for one engine; False when it has nothing to do or no room."""
        started = time.monotonic()
        if engine_id not in self._state.engines:
            return False
        decision = self._state.decide(engine_id)
        if decision is None:
            return False
        try:
            refused = self._dispatcher.send(decision, self._heard)
        except LookupError:
            self._recovery.lose(engine_id)
            return False
        except PromptLost as lost:
            message = "the prompt of this request is lost or unreadable; send the request again"
            self._recovery.carry_out(Fail(lost.sequence.request, ErrorCode.INTERNAL_ERROR, message))
            return True
        for sequence_id in refused:
            self._refresh(sequence_id)
        if not refused:
            self._state.scheduled(decision)
            self._metrics.observe(decision, time.monotonic() - started, self._state)
        return True

    def _refresh(self, sequence_id: str) -> None:
        """Read a refused member again; one whose record is unreadable must not stop the others."""
        try:
            self._recovery.refresh(sequence_id)
        except DecodeError as error:
            inbox.bury(self._pool.client, self._keys, channel="record", error=error)
            known = self._state.sequences.get(sequence_id)
            if known is not None:
                message = "the record of this request is unreadable; send the request again"
                self._recovery.carry_out(Fail(known.request, ErrorCode.INTERNAL_ERROR, message))

    def _lost_engines(self) -> list[InboxEvent]:
        """Engines whose presence lapsed, once Redis has answered us for one full lease."""
        if time.monotonic() - self._answering_since < presence.LEASE_SECONDS:
            return []
        present = {status.id: status for status in self._recovery.present_engines()}
        for status in present.values():
            if status.id not in self._state.engines:
                self._effects += self._state.join(status)
        return [EngineLeft(engine=e) for e in list(self._state.engines) if e not in present]

    def _lose_stuck_engines(self) -> None:
        """Engines that beat and compute nothing; the inbox events that follow free their sequences."""
        raw: Any = self._pool.client.hgetall(self._keys.progress)
        progress = {engine.decode(): int(count) for engine, count in raw.items()}
        busy = [engine_id for engine_id, ledger in self._state.engines.items() if ledger.in_flight]
        for engine_id in self._watchdog.stuck(progress, busy, time.monotonic()):
            self._recovery.lose(engine_id, "it has work and computes nothing")

    def _redis_time(self) -> float:
        now: Any = self._pool.client.time()
        return float(now[0]) + float(now[1]) / 1e6
