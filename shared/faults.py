"""Faults that a test asks of one request: the whole hook, imported only where `--test-faults` is on.

Knows the header's grammar and carries it out: the stage `tokenize` in the gateway, all others in the
engine, which asks at each stage. Nothing happens for requests without the header.
"""

import asyncio
import re
import time
from dataclasses import dataclass

MAX_SLEEP = 600.0
_FAULT = re.compile(
    r"(tokenize|prefill|decode|sample|publish)(?::([1-9]\d{0,5}))?"
    r"=(raise|oom|sleep)(?::(\d{1,4}(?:\.\d{1,3})?))?"
)
GRAMMAR = (
    "X-Orca-Fault must be STAGE=ACTION[,STAGE=ACTION]; stages: tokenize, prefill, decode:K, "
    "sample, publish; actions: raise, oom, sleep:SECONDS"
)


class InjectedFault(RuntimeError):
    """What `raise` raises."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One STAGE=ACTION of the header."""

    stage: str
    number: int
    """For `decode`: which decode iteration after the prefill, from 1; else 0."""
    action: str
    seconds: float


def parse_faults(header: str) -> tuple[Fault, ...]:
    """Read a fault header.

    Raises:
        ValueError: it does not follow the grammar.
    """
    return tuple(_parse(part.strip()) for part in header.split(",") if part.strip())


def _parse(text: str) -> Fault:
    match = _FAULT.fullmatch(text)
    if match is None:
        raise ValueError(GRAMMAR)
    stage, number, action, seconds = match.groups()
    if (stage == "decode") != (number is not None) or (action == "sleep") != (seconds is not None):
        raise ValueError(GRAMMAR)
    return Fault(stage, int(number or 0), action, min(MAX_SLEEP, float(seconds or 0)))


async def tokenize(header: str) -> None:
    """The gateway's own stage.

    Raises:
        ValueError: the header does not follow the grammar.
        InjectedFault: `tokenize=raise` or `tokenize=oom`.
    """
    for fault in parse_faults(header):
        if fault.stage != "tokenize":
            continue
        if fault.action != "sleep":
            raise InjectedFault(f"injected fault: {fault.stage}={fault.action}")
        await asyncio.sleep(fault.seconds)


class FaultInjector:
    """Carries out the engine's stages for the sequences that have faults."""

    def __init__(self) -> None:
        self._slept: set[tuple[str, int, Fault]] = set()

    def reach(self, header: str, sequence_id: str, *, stage: str, index: int) -> None:
        """A sequence has reached a stage on the way to its `index`-th token.

        `raise` and `oom` come again at each retry, as a real fault of the request would; a
        `sleep` is slept once.

        Raises:
            InjectedFault, MemoryError: if the header asks for it here.
        """
        for fault in parse_faults(header):
            if fault.stage != stage or (stage == "decode" and fault.number != index):
                continue
            if fault.action == "raise":
                raise InjectedFault(f"fault asked for at {stage}")
            if fault.action == "oom":
                raise MemoryError(f"fault asked for at {stage}")
            if (sequence_id, index, fault) not in self._slept:
                self._slept.add((sequence_id, index, fault))
                time.sleep(fault.seconds)

    def forget(self, sequence_id: str) -> None:
        """A sequence has been released."""
        self._slept = {key for key in self._slept if key[0] != sequence_id}
