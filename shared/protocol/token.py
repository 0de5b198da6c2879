"""What reaches gateways over pub/sub, and what stands in a token log."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from shared.protocol.wire import Message, Versioned


class FinishReason(StrEnum):
    """Why a completed sequence ended."""

    STOP = "stop"
    LENGTH = "length"


class State(StrEnum):
    """Where a sequence's record stands; the last three are final."""

    WAITING = "waiting"
    RUNNING = "running"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        return self in (State.COMPLETED, State.CANCELLED, State.FAILED)


class TokenEntry(Message):
    """One committed token, as the log keeps it."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    """Alternatives, best first: (token id, log probability)."""
    prompt: "tuple[TokenEntry, ...]" = Field((), exclude_if=lambda entries: not entries)
    """In a log's first entry, where prompt scores were asked for: one per prompt token. The first has no
    score. They stand in the log so that they are committed, replayed and restored with it."""


class TokenEvent(Message):
    """One committed token: its index in the log and the log's entry, still encoded."""

    kind: Literal["token"] = "token"
    id: str
    index: int
    entry: str


class StateEvent(Message):
    """A record changed state. For an end, `n_tokens` is how many of the log's tokens count."""

    kind: Literal["state"] = "state"
    id: str
    state: State
    attempt: int = 0
    n_tokens: int = 0
    finish_reason: str = ""
    code: str = ""
    message: str = ""


Event = Annotated[TokenEvent | StateEvent, Field(discriminator="kind")]


class EventMessage(Versioned):
    """All events that one script makes for one gateway."""

    kind: Literal["events"] = "events"
    events: tuple[Event, ...]
