"""What an engine gives back: an iteration's result, its presence and its report."""

from enum import StrEnum
from typing import Literal

from shared.protocol.batch import Waiting
from shared.protocol.wire import Message, Versioned


class Phase(StrEnum):
    """A member's phase in one iteration. ORCA says initiation and increment."""

    PREFILL = "prefill"
    DECODE = "decode"


class SequenceOutput(Message):
    """One member's part of an iteration's result."""

    id: str
    attempt: int
    index: int
    """Log index of `token`; the pool refuses any other than the log's length."""
    token: int | None = None
    """None when the member failed, or its prefill is not complete yet."""
    entry: str = ""
    """The encoded TokenEntry that goes to the log."""
    finish_reason: str = ""
    """`stop` or `length` when this token is the last."""
    code: str = ""
    """An error code when the member failed."""
    message: str = ""


class Member(Message):
    """A member as the iteration's record shows it."""

    id: str
    phase: Phase
    tokens: int
    """Input tokens of this member in the iteration."""


class IterationRecord(Versioned):
    """One line of `GET /v1/iterations`."""

    kind: Literal["iteration"] = "iteration"
    number: int
    engine: str
    members: tuple[Member, ...]
    kv_slots_reserved: int
    kv_slots_used: int
    batches_in_flight: int
    started: float
    """Seconds since the epoch."""
    duration_seconds: float
    waiting: tuple[Waiting, ...] = ()
    waiting_total: int = 0
    heard: str = "0-0"
    forward_passes: int = 1
    """More than one only under request-level scheduling, where one message is a whole batch."""


class IterationResult(Versioned):
    """What the sampling rank commits, once per iteration."""

    kind: Literal["result"] = "result"
    engine: str
    """The engine's id, not its stable name."""
    iteration: int
    outputs: tuple[SequenceOutput, ...]
    record: str
    """The encoded IterationRecord."""


class EngineStatus(Versioned):
    """An engine's presence: who it is and what it can hold."""

    kind: Literal["engine"] = "engine"
    id: str
    name: str
    n_slots: int
    max_model_len: int
    stages: int = 1
    max_batch_size: int = 16
    draining: bool = False


class GatewayStatus(Versioned):
    """A gateway's presence."""

    kind: Literal["gateway"] = "gateway"
    id: str
    url: str


class HeldSequence(Message):
    """A sequence whose K/V an engine holds."""

    id: str
    attempt: int
    n_kv: int
    """K/V length in tokens."""
    reserved_slots: int


class EngineReport(Versioned):
    """The answer to a descriptor with `report`: all that an engine holds."""

    kind: Literal["report"] = "report"
    fence: str
    """The fence of the question."""
    status: EngineStatus
    last_iteration: int
    held: tuple[HeldSequence, ...]
