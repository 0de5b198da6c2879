"""Faults that a test asks of one request (`--test-faults`): where, what, and only there.

Knows the header's grammar. The engine asks at each stage; nothing happens for other requests.
"""

import time
from dataclasses import dataclass

STAGES = ("prefill", "decode", "sample", "publish")


class InjectedFault(RuntimeError):
    """What `raise` raises."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One STAGE=ACTION of the header."""

    stage: str
    number: int
    """For `decode`: which decode iteration after the prefill, from 1."""
    action: str
    seconds: float = 0.0


def parse_faults(header: str) -> tuple[Fault, ...]:
    """Read a fault header; stages that belong to other services are left out.

    Raises:
        ValueError: a stage or an action that does not exist.
    """
    faults = []
    for part in filter(None, (piece.strip() for piece in header.split(","))):
        place, _, action = part.partition("=")
        stage, _, number = place.partition(":")
        action, _, seconds = action.partition(":")
        if stage == "tokenize":
            continue
        if stage not in STAGES or action not in ("raise", "oom", "sleep"):
            raise ValueError(f"unknown fault {part!r}")
        faults.append(Fault(stage, int(number or 0), action, float(seconds or 0)))
    return tuple(faults)


class FaultInjector:
    """Carries out the faults of the sequences that have some."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._slept: set[tuple[str, int, Fault]] = set()

    def reach(self, header: str, sequence_id: str, *, stage: str, index: int) -> None:
        """A sequence has reached a stage on the way to its `index`-th token.

        `raise` and `oom` come again at each retry, as a real fault of the request would; a
        `sleep` is slept once.

        Raises:
            InjectedFault, MemoryError: if the header asks for it here.
        """
        if not self._enabled or not header:
            return
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
