"""What engines did, as histograms, told by the recorded iterations in the pool.

Each scrape reads the records that are new since the last one, so any gateway shows the whole
cluster without asking an engine. Of more than 2,000 iterations between two scrapes the oldest
are missing here; the engine's own /metrics has them all.
"""

import logging
from typing import Any

import redis.asyncio
from prometheus_client import CollectorRegistry, Gauge, Histogram

from shared.errors import DecodeError
from shared.keys import Keys
from shared.observability.metrics import DURATION_BUCKETS, SIZE_BUCKETS, TOKEN_BUCKETS
from shared.protocol.result import IterationRecord
from shared.protocol.wire import decode

LOG = logging.getLogger(__name__)
BUSY_WINDOW_SECONDS = 10.0


class IterationMetrics:
    """Histograms over the iterations that this process has read, and each engine's busy ratio."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._duration = Histogram(
            "orca_iteration_duration_seconds",
            "Seconds of one iteration: forward pass and sampling.",
            ("engine", "phase"),
            buckets=DURATION_BUCKETS,
            registry=registry,
        )
        self._size = Histogram(
            "orca_batch_size", "Members of one iteration.", buckets=SIZE_BUCKETS, registry=registry
        )
        self._tokens = Histogram(
            "orca_batch_tokens", "Input tokens of one iteration.", buckets=TOKEN_BUCKETS, registry=registry
        )
        self._busy = Gauge(
            "orca_engine_busy_ratio",
            "Part of the last 10 s that an engine spent computing.",
            ("engine",),
            registry=registry,
        )
        self._read: dict[str, str] = {}
        self._recent: dict[str, list[tuple[float, float]]] = {}

    async def catch_up(self, client: "redis.asyncio.Redis", keys: Keys, engines: list[str]) -> None:
        """Read what the named engines have recorded since the last call.

        Raises:
            redis.RedisError: no answer.
        """
        now: Any = await client.time()
        for engine in engines:
            after = self._read.get(engine)
            entries: Any = await client.xrange(keys.iterations(engine), min=f"({after}" if after else "-")
            for entry_id, fields in entries:
                self._read[engine] = entry_id.decode()
                self._take(engine, entry_id, fields.get(b"m", b""))
            self._busy.labels(engine).set(self._busy_ratio(engine, now[0] + now[1] / 1e6))

    def _take(self, engine: str, entry_id: bytes, payload: bytes) -> None:
        try:
            record = decode(IterationRecord, payload)
        except DecodeError as error:
            LOG.warning("unreadable iteration record: %s", error)
            return
        self._size.observe(len(record.members))
        self._tokens.observe(sum(member.tokens for member in record.members))
        self._duration.labels(engine, _phase(record)).observe(record.duration_seconds)
        # The entry's id is the commit's time on the Redis clock: engines' own clocks may differ.
        ended = int(entry_id.split(b"-")[0]) / 1000
        self._recent.setdefault(engine, []).append((ended, record.duration_seconds))

    def _busy_ratio(self, engine: str, now: float) -> float:
        recent = [item for item in self._recent.get(engine, []) if item[0] > now - BUSY_WINDOW_SECONDS]
        self._recent[engine] = recent
        start = now - BUSY_WINDOW_SECONDS
        busy = sum(ended - max(ended - duration, start) for ended, duration in recent)
        return min(1.0, busy / BUSY_WINDOW_SECONDS)


def _phase(record: IterationRecord) -> str:
    phases = {member.phase.value for member in record.members}
    return phases.pop() if len(phases) == 1 else "mixed"
