"""What the scheduler's state asks of the world: steps in the pool, and iterations to run.

Plain data; knows nothing of how it is carried out. Every effect is safe to repeat.
"""

from dataclasses import dataclass

from services.scheduler.sequence import Sequence
from shared.errors import ErrorCode
from shared.protocol.batch import Waiting
from shared.protocol.request import GenerationRequest
from shared.protocol.token import State


@dataclass(frozen=True, slots=True)
class AskReport:
    """Ask an engine what it holds."""

    engine: str


@dataclass(frozen=True, slots=True)
class Refresh:
    """Read a sequence's record: what is known of it may be wrong."""

    id: str


@dataclass(frozen=True, slots=True)
class Reassign:
    """Let a sequence wait again, away from an engine."""

    id: str
    engine: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Fail:
    """End a sequence that cannot or may no longer run."""

    request: GenerationRequest
    code: ErrorCode
    message: str
    only_if: State | None = None


Effect = AskReport | Refresh | Reassign | Fail


@dataclass(frozen=True, slots=True)
class Decision:
    """One iteration for one engine."""

    engine: str
    iteration: int
    members: tuple[Sequence, ...]
    releases: tuple[str, ...]
    n_reserved: int
    batches_in_flight: int
    waiting: tuple[Waiting, ...]
    waiting_total: int
    trim_before: int
