"""What the scheduler hears, in one order. Every event may come twice; none may be trusted
against the record: the inbox is an order, not a memory."""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from shared.protocol.result import EngineReport, EngineStatus
from shared.protocol.settings import SettingsChanged
from shared.protocol.wire import Message, Versioned


class Submitted(Versioned):
    """A sequence was accepted."""

    kind: Literal["submit"] = "submit"
    id: str
    arrival: int
    request: str
    """The encoded GenerationRequest."""


class Ended(Versioned):
    """A sequence ended by another hand than an iteration: cancel, stop string, time-out."""

    kind: Literal["end"] = "end"
    id: str


class Reassigned(Versioned):
    """A sequence waits again, under a new attempt."""

    kind: Literal["reassigned"] = "reassigned"
    id: str
    attempt: int


class Output(Message):
    """One member's result after the pool has judged it."""

    id: str
    attempt: int
    accepted: bool
    """False when the record says otherwise: ended, another engine, another attempt or index."""
    index: int = 0
    token: int | None = None
    ended: bool = False
    """The record is in a final state now."""
    code: str = ""


class Returned(Versioned):
    """An engine committed an iteration."""

    kind: Literal["result"] = "result"
    engine: str
    iteration: int
    outputs: tuple[Output, ...]


class EngineJoined(Versioned):
    """An engine is present under this id."""

    kind: Literal["engine_joined"] = "engine_joined"
    status: EngineStatus


class EngineDraining(Versioned):
    """An engine takes no new sequences and wants to hand over those it holds."""

    kind: Literal["engine_draining"] = "engine_draining"
    engine: str


class EngineLeft(Versioned):
    """An engine has gone; what it held is lost."""

    kind: Literal["engine_left"] = "engine_left"
    engine: str


class Reported(Versioned):
    """An engine answered a new leader's question."""

    kind: Literal["reported"] = "reported"
    engine: str
    report: str
    """The encoded EngineReport."""


class Tick(Versioned):
    """The time, as the scheduler may know it."""

    kind: Literal["tick"] = "tick"
    now: float


InboxEvent = Annotated[
    Submitted
    | Ended
    | Reassigned
    | Returned
    | EngineJoined
    | EngineDraining
    | EngineLeft
    | Reported
    | Tick
    | SettingsChanged,
    Field(discriminator="kind"),
]
INBOX_EVENT: TypeAdapter[InboxEvent] = TypeAdapter(InboxEvent)

__all__ = [
    "INBOX_EVENT",
    "Ended",
    "EngineDraining",
    "EngineJoined",
    "EngineLeft",
    "EngineReport",
    "InboxEvent",
    "Output",
    "Reassigned",
    "Reported",
    "Returned",
    "SettingsChanged",
    "Submitted",
    "Tick",
]
