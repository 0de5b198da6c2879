"""Which engine each waiting sequence is placed on, worked out only as far as somebody asks.

Placing is a walk along the line in which every sequence takes room where it is placed. The walk
is kept between decisions: an admission follows it, so only what frees room, takes a sequence out
of the line or puts one into the walked part makes it start anew.
"""

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq

from services.scheduler.selection import place
from services.scheduler.sequence import Order, Sequence
from services.scheduler.slots import EngineLedger

LOOK_AHEAD = 64
"""Sequences without room anywhere that the walk goes past before it stops."""


class Placement:
    """One walk over the waiting line; `line` is the live, ordered list of those that wait."""

    def __init__(self, ledgers: Iterable[EngineLedger], line: Seq[tuple[Order, Sequence]]) -> None:
        self._loads = {ledger.engine_id: _Tentative(ledger) for ledger in ledgers}
        self._line = line
        self._placed: dict[str, list[Sequence]] = {engine_id: [] for engine_id in self._loads}
        self.walked = 0
        """How many of the line's first have been placed."""
        self._blocked = 0

    def on(self, engine_id: str) -> Iterator[Sequence]:
        """The sequences placed on an engine, in order."""
        placed = self._placed.get(engine_id)
        if placed is None:
            return
        at = 0
        while at < len(placed) or self._walk_until(placed, at):
            yield placed[at]
            at += 1

    def admitted(self, sequence: Sequence, engine_id: str) -> bool:
        """A sequence has left the line for an engine; False when it was placed elsewhere."""
        placed = self._placed.get(engine_id, [])
        if sequence not in placed:
            return False
        placed.remove(sequence)
        self.walked -= 1
        return True

    def _walk_until(self, placed: list[Sequence], length: int) -> bool:
        """Place on until one more has come to `placed`; False when the walk ends before."""
        loads = list(self._loads.values())
        while len(placed) == length:
            if self.walked == len(self._line) or self._blocked > LOOK_AHEAD:
                return False
            sequence = self._line[self.walked][1]
            self.walked += 1
            slots = sequence.reserved_slots
            chosen = place(slots, loads)
            if chosen is None:
                self._blocked += 1
                continue
            load = self._loads[chosen]
            self._blocked += not (load.has_place and slots <= load.n_slots - load.n_reserved)
            load.take(slots)
            self._placed[chosen].append(sequence)
        return True


class _Tentative:
    """An engine's load as placement sees it while the line is walked."""

    def __init__(self, ledger: EngineLedger) -> None:
        self.engine_id, self.n_slots = ledger.engine_id, ledger.n_slots
        self.n_reserved = ledger.n_reserved
        self._places = ledger.most_members - ledger.n_held

    @property
    def has_place(self) -> bool:
        return self._places > 0

    def take(self, reserved_slots: int) -> None:
        self.n_reserved += reserved_slots
        self._places -= 1
