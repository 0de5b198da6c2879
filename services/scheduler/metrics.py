"""What the scheduler reports, declared once."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from services.scheduler.effects import Decision
from services.scheduler.state import SchedulerState
from shared.observability.metrics import DURATION_BUCKETS, SIZE_BUCKETS


class SchedulerMetrics:
    """The scheduler's own metrics; the cluster-wide ones live in the pool."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.leader = Gauge("orca_scheduler_leader", "1 while this scheduler leads.", registry=self.registry)
        self.decisions = Counter(
            "orca_scheduler_decisions_total", "Iterations dispatched.", registry=self.registry
        )
        self.decision_seconds = Histogram(
            "orca_scheduler_decision_seconds",
            "Time to select and dispatch one iteration.",
            buckets=DURATION_BUCKETS,
            registry=self.registry,
        )
        self.batch_size = Histogram(
            "orca_scheduler_batch_size",
            "Members of a dispatched iteration.",
            buckets=SIZE_BUCKETS,
            registry=self.registry,
        )
        self.waiting = Gauge("orca_scheduler_waiting", "Sequences without an engine.", registry=self.registry)

    def observe(self, decision: Decision, seconds: float, state: SchedulerState) -> None:
        """One dispatched decision and how long it took."""
        self.decisions.inc()
        self.decision_seconds.observe(seconds)
        self.batch_size.observe(len(decision.members))
        self.waiting.set(state.n_waiting)
