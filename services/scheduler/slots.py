"""The reservation ledger of one engine: ORCA's n_rsrv and n_scheduled, kept per engine.

The scheduler owns the ledger, the engine owns the memory: slots are promised at a sequence's
first scheduling and given back when it ends. Releases travel first in the next descriptor, so
what is given back here is free there before the batch that counts on it.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator

from services.scheduler.sequence import Order, Sequence
from shared.protocol.result import EngineStatus


class EngineLedger:
    """What one engine was promised and is doing."""

    def __init__(self, status: EngineStatus) -> None:
        self.status = status
        self.ready = False
        """It has reported to this leader; before, it gets nothing."""
        self.next_iteration = 1
        self.in_flight: dict[int, tuple[str, ...]] = {}
        """Iteration number -> members, dispatched and not returned."""
        self.releases: list[str] = []
        """To be dropped by the engine before its next batch."""
        self._reserved: dict[str, int] = {}
        self._n_reserved = 0
        self._held: list[tuple[Order, Sequence]] = []

    @property
    def engine_id(self) -> str:
        return self.status.id

    @property
    def n_slots(self) -> int:
        return self.status.n_slots

    @property
    def n_workers(self) -> int:
        """Batches that the engine's pipeline holds at once."""
        return self.status.stages

    @property
    def n_reserved(self) -> int:
        """Slots promised to sequences: ORCA's n_rsrv."""
        return self._n_reserved

    @property
    def n_scheduled(self) -> int:
        """Batches in flight: ORCA's n_scheduled."""
        return len(self.in_flight)

    @property
    def has_place(self) -> bool:
        """Whether one more sequence would find a place in its batches."""
        return self.ready and not self.status.draining and self.n_held < self.most_members

    @property
    def most_members(self) -> int:
        """Members of all its batches together."""
        return self.status.max_batch_size * self.n_workers

    @property
    def n_held(self) -> int:
        return len(self._held)

    def held(self) -> Iterator[Sequence]:
        """Its sequences in their order."""
        return (sequence for _, sequence in self._held)

    def admit(self, sequence: Sequence) -> None:
        """Reserve a sequence's slots; it belongs to this engine until `release`."""
        assert sequence.id not in self._reserved, "reserved once, at its first scheduling"
        self._reserved[sequence.id] = sequence.reserved_slots
        self._n_reserved += sequence.reserved_slots
        insort(self._held, (sequence.order, sequence), key=lambda item: item[0])
        sequence.engine = self.engine_id

    def release(self, sequence: Sequence) -> None:
        """Give a sequence's slots back; the engine drops its K/V before its next batch."""
        slots = self._reserved.pop(sequence.id, None)
        if slots is None:
            return
        self._n_reserved -= slots
        at = bisect_left(self._held, sequence.order, key=lambda item: item[0])
        del self._held[at]
        self.releases.append(sequence.id)
        sequence.engine, sequence.has_kv, sequence.in_flight = "", False, False
