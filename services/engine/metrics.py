"""What one engine process measures, by the names of the contract."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from services.engine.iteration import Executed
from services.engine.kv_manager import KVManager
from shared.observability.metrics import DURATION_BUCKETS, SIZE_BUCKETS, TOKEN_BUCKETS


class EngineMetrics:
    """This process's numbers, under the engine's stable name."""

    def __init__(self, engine: str) -> None:
        self.registry = CollectorRegistry()
        self._engine = engine
        own = {"registry": self.registry, "labelnames": ("engine",)}
        self._iterations = Counter("orca_iterations_total", "Iterations run.", **own)  # type: ignore[arg-type]
        self._duration = Histogram(
            "orca_iteration_duration_seconds",
            "Forward pass and sampling of one iteration.",
            ("engine", "phase"),
            buckets=DURATION_BUCKETS,
            registry=self.registry,
        )
        self._size = Histogram(
            "orca_batch_size", "Members of one iteration.", buckets=SIZE_BUCKETS, registry=self.registry
        )
        self._tokens = Histogram(
            "orca_batch_tokens",
            "Input tokens of one iteration.",
            buckets=TOKEN_BUCKETS,
            registry=self.registry,
        )
        self._slots = Gauge("orca_kv_slots", "K/V slots.", **own)  # type: ignore[arg-type]
        self._reserved = Gauge("orca_kv_slots_reserved", "K/V slots promised.", **own)  # type: ignore[arg-type]
        self._used = Gauge("orca_kv_slots_used", "K/V slots that hold a token.", **own)  # type: ignore[arg-type]
        self._busy = Gauge("orca_engine_busy_ratio", "Part of the time spent computing.", **own)  # type: ignore[arg-type]
        self._generated = Counter(
            "orca_generated_tokens_total", "Tokens accepted by the pool.", registry=self.registry
        )
        self._stale = Counter(
            "orca_stale_writes_total", "Results that the pool refused.", registry=self.registry
        )
        self._busy_average = 0.0

    def observe_kv(self, kv: KVManager) -> None:
        """The K/V gauges as they are now."""
        self._slots.labels(self._engine).set(kv.n_slots)
        self._reserved.labels(self._engine).set(kv.n_reserved)
        self._used.labels(self._engine).set(kv.n_used)

    def observe_iteration(self, executed: Executed, *, duration: float, since_last: float) -> None:
        """One iteration: its duration and the whole time since the one before, in seconds."""
        self._iterations.labels(self._engine).inc()
        self._duration.labels(self._engine, executed.phase).observe(duration)
        self._size.observe(len(executed.members))
        self._tokens.observe(executed.n_tokens)
        # Weighted by time: a long idle gap counts for as long as it lasted (about the last 10 s).
        weight = min(1.0, since_last / 10.0)
        self._busy_average += weight * (min(1.0, duration / max(since_last, 1e-9)) - self._busy_average)
        self._busy.labels(self._engine).set(self._busy_average)

    def observe_commit(self, accepted: dict[str, bool]) -> None:
        """What the pool said to one commit."""
        n_accepted = sum(accepted.values())
        self._generated.inc(n_accepted)
        self._stale.inc(len(accepted) - n_accepted)
