"""Tells a stuck engine from a busy one: a busy one's progress moves with every layer it computes.

Pure: it is told the time, who has work and how far everybody is. The heartbeat comes from a
thread of its own, so an engine whose forward pass hangs goes on beating; only this notices.
"""

from collections.abc import Collection, Mapping

STUCK_SECONDS = 30.0
"""An engine with work that computes no layer for this long is lost, although it beats."""


class Watchdog:
    """How long each engine with work has stood still."""

    def __init__(self) -> None:
        self._still: dict[str, tuple[int, float]] = {}
        """Engine -> its progress, and since when it is that."""

    def stuck(self, progress: Mapping[str, int], busy: Collection[str], now: float) -> list[str]:
        """Engines that have work and stood still for `STUCK_SECONDS`. `now` is monotonic."""
        still = {engine: (progress.get(engine, 0), now) for engine in busy}
        for engine, (count, _) in still.items():
            known = self._still.get(engine)
            if known is not None and known[0] == count:
                still[engine] = known
        self._still = still
        return sorted(engine for engine, (_, since) in still.items() if now - since >= STUCK_SECONDS)

    def forget(self) -> None:
        """Redis did not answer: nobody could have said how far he is."""
        self._still.clear()
