"""What the scheduler sends to an engine: one message, one iteration.

The full story travels once, in a FirstEntry; afterwards a member is an id, its last token and
its position. No message holds a phase: it follows from whether the engine holds K/V.
"""

from typing import Annotated, Literal

from pydantic import Field

from shared.protocol.request import SamplingParams
from shared.protocol.wire import Message, Versioned


class FirstEntry(Message):
    """A member that this engine does not hold yet."""

    kind: Literal["first"] = "first"
    id: str
    attempt: int
    group: str
    prompt_index: int = 0
    tokens: tuple[int, ...]
    """Prompt and, after a reassign, the committed tokens; all of them are prefilled."""
    n_prompt: int
    """The border between prompt and output within `tokens`."""
    reserved_slots: int
    """K/V room for the whole life of the sequence, in tokens."""
    sampling: SamplingParams
    fault: str = ""

    @property
    def index(self) -> int:
        """Log index of the token that this iteration yields."""
        return len(self.tokens) - self.n_prompt


class ContinuingEntry(Message):
    """A member whose K/V the engine holds: all its tokens but the last."""

    kind: Literal["continuing"] = "continuing"
    id: str
    attempt: int
    last_token: int
    position: int
    """Position of `last_token` in the sequence, from 0: also the K/V length before this iteration."""
    index: int
    """Log index of the token that this iteration yields."""


Entry = Annotated[FirstEntry | ContinuingEntry, Field(discriminator="kind")]


class Waiting(Message):
    """A candidate that was not taken, and why."""

    id: str
    reason: str


class BatchDescriptor(Versioned):
    """One iteration for one engine, in the order: releases first, then run the entries.

    With `report` set it carries no entries: the engine answers with what it holds.
    """

    kind: Literal["batch"] = "batch"
    iteration: int
    fence: str
    releases: tuple[str, ...] = ()
    """Sequences whose K/V is dropped before anything else."""
    entries: tuple[Entry, ...] = ()
    report: bool = False
    until_done: bool = False
    """Request-level scheduling, the baseline: run the entries until all have ended, then commit."""
    n_reserved: int = 0
    """K/V slots promised on this engine, after this selection: ORCA's n_rsrv."""
    batches_in_flight: int = 1
    waiting: tuple[Waiting, ...] = ()
    """The first 32 candidates not taken, for the iteration's record."""
    waiting_total: int = 0
    heard: str = "0-0"
    """The last inbox entry that this decision knew."""
