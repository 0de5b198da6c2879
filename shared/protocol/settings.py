"""What can be changed while the system runs, and who listens to it: the scheduler."""

from typing import Literal

from pydantic import Field

from shared.protocol.wire import Message, Versioned


class RuntimeSettings(Message):
    """The scheduler's knobs. None means as its process was started."""

    max_batch_size: int | None = Field(None, ge=1, le=4096)
    """Most members of one iteration; an engine's own limit holds beside it."""
    queue_timeout: float | None = Field(None, ge=0, le=86_400)
    """Seconds that a request may wait for its first iteration; 0 = no limit."""


class SettingsChanged(Versioned):
    """Runtime settings were changed: all that are set now, as the pool keeps them."""

    kind: Literal["settings"] = "settings"
    fields: tuple[str, ...]
    """Name and JSON value, in turn."""
