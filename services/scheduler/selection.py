"""Which sequences run next: ORCA's Algorithm 1 as a pure function, and placement over engines.

No clock, no Redis, no await: the same arguments give the same batch, so a recorded inbox
replayed through it gives the same decisions.
"""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from heapq import merge
from operator import attrgetter
from typing import Protocol

from services.scheduler.sequence import Sequence

REASON_BATCH, REASON_SLOTS, REASON_REQUEST_LEVEL = "max_batch_size", "kv_slots", "request_level"


@dataclass(frozen=True, slots=True)
class Selection:
    """The batch of one iteration."""

    members: tuple[Sequence, ...]
    n_reserved: int
    """K/V slots promised on the engine after this selection: ORCA's n_rsrv."""
    stopped_by: str = ""
    """Why the walk ended before its last candidate."""


Select = Callable[..., Selection]


def select(
    running: Seq[Sequence],
    waiting: Iterable[Sequence],
    *,
    max_batch_size: int,
    n_slots: int,
    n_reserved: int,
) -> Selection:
    """Algorithm 1, Select (ORCA, section 4.2).

    Args:
        running: sequences of this engine that are not in flight, by arrival; their slots are reserved.
        waiting: sequences placed on this engine that hold nothing yet, by arrival.
        max_batch_size: ORCA's max_bs.
        n_slots: K/V slots of the engine.
        n_reserved: slots promised so far.
    """
    members: list[Sequence] = []
    n_running, stopped_by = 0, ""
    for sequence in merge(running, waiting, key=attrgetter("order")):
        if len(members) == max_batch_size:
            return Selection(tuple(members), n_reserved, REASON_BATCH)
        if sequence.engine:
            n_running += 1
        elif n_reserved + sequence.reserved_slots > n_slots:
            # Stop, never skip: a smaller, later one must not overtake.
            stopped_by = REASON_SLOTS
            break
        else:
            n_reserved += sequence.reserved_slots
        members.append(sequence)
    # After a failover an older sequence may wait behind younger ones that hold their slots. Those
    # go on: nobody else could ever give it room.
    members += running[n_running : n_running + max_batch_size - len(members)]
    return Selection(tuple(members), n_reserved, stopped_by)


def select_request_level(
    running: Seq[Sequence],
    waiting: Iterable[Sequence],
    *,
    max_batch_size: int,
    n_slots: int,
    n_reserved: int,
) -> Selection:
    """The baseline: a new batch only when the engine has nothing left of the last one.

    The engine then runs the batch to its end in one call, and all members are answered together.
    Arguments as `select`.
    """
    if running:
        return Selection(tuple(running[:max_batch_size]), n_reserved, REASON_REQUEST_LEVEL)
    if n_reserved:
        return Selection((), n_reserved, REASON_REQUEST_LEVEL)
    return select((), waiting, max_batch_size=max_batch_size, n_slots=n_slots, n_reserved=0)


class Load(Protocol):
    """What placement sees of an engine."""

    @property
    def engine_id(self) -> str: ...
    @property
    def n_slots(self) -> int: ...
    @property
    def n_reserved(self) -> int: ...
    @property
    def has_place(self) -> bool: ...


def place(reserved_slots: int, loads: Seq[Load]) -> str | None:
    """The engine for a new sequence, or None where no engine can ever hold it.

    An engine with room now comes before one without, then the one with most free slots, ties by
    id. Engines that can never hold it are skipped.
    """
    able = [load for load in loads if reserved_slots <= load.n_slots]
    if not able:
        return None

    def preference(load: Load) -> tuple[bool, int, str]:
        free = load.n_slots - load.n_reserved
        return not (load.has_place and reserved_slots <= free), -free, load.engine_id

    return min(able, key=preference).engine_id
