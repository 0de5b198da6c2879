"""Everything a gateway reports. Histograms are this process's; the rest is read from the pool,
so that every gateway gives the same cluster-wide numbers."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from services.gateway.iteration_metrics import IterationMetrics
from shared.observability.metrics import DURATION_BUCKETS
from shared.protocol.result import EngineStatus


@dataclass(frozen=True, slots=True)
class PoolView:
    """One reading of the pool's counters and gauges."""

    totals: Mapping[str, float] = field(default_factory=dict)
    open: int = 0
    engines: tuple[EngineStatus, ...] = ()
    gauges: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Engine name -> its last iteration's numbers."""


class GatewayMetrics:
    """The histograms of one process, and the page that shows them with the pool's numbers."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.first_token = self._histogram(
            "time_to_first_token", "from accepting a request to its first token"
        )
        self.inter_token = self._histogram("inter_token", "between two tokens of a choice")
        self.duration = self._histogram("request_duration", "from accepting a request to its end")
        self.queue = self._histogram("request_queue", "from accepting a request to its first iteration")
        self.iterations = IterationMetrics(self.registry)

    def _histogram(self, name: str, what: str) -> Histogram:
        return Histogram(
            f"orca_{name}_seconds", f"Seconds {what}.", registry=self.registry, buckets=DURATION_BUCKETS
        )

    def page(self, view: PoolView) -> bytes:
        """The whole /metrics page."""
        shown = CollectorRegistry()
        shown.register(_PoolCollector(view))
        return generate_latest(self.registry) + generate_latest(shown)


class _PoolCollector:
    def __init__(self, view: PoolView) -> None:
        self._view = view

    def collect(self) -> Iterable[Metric]:
        yield from self._requests()
        yield from self._counters()
        yield from self._engines()

    def _requests(self) -> Iterable[Metric]:
        totals = self._view.totals
        outcomes = CounterMetricFamily("orca_requests", "API requests by outcome.", labels=["outcome"])
        for outcome in ("completed", "cancelled", "rejected", "failed"):
            outcomes.add_metric([outcome], totals.get(f"requests:{outcome}", 0))
        yield outcomes
        running = max(0, min(totals.get("running", 0), self._view.open))
        yield GaugeMetricFamily("orca_requests_running", "Sequences on an engine.", value=running)
        yield GaugeMetricFamily(
            "orca_requests_waiting", "Accepted sequences on no engine.", value=self._view.open - running
        )

    def _counters(self) -> Iterable[Metric]:
        for name, source, text in (
            ("prompt_tokens", "prompt_tokens", "Tokens of accepted prompts, each prompt once."),
            ("generated_tokens", "generated_tokens", "Tokens committed to logs."),
            ("prefix_cache_hit_tokens", "prefix_hit_tokens", "Prompt tokens whose K/V was found cached."),
            ("preemptions", "preemptions", "Sequences taken off an engine to wait again."),
            ("stale_writes", "stale_writes", "Results that the pool refused as outdated."),
            ("dead_letters", "dead_letters", "Payloads that could not be read."),
        ):
            yield CounterMetricFamily(f"orca_{name}", text, value=self._view.totals.get(source, 0))
        iterations = CounterMetricFamily("orca_iterations", "Committed iterations.", labels=["engine"])
        for name, value in sorted(self._view.totals.items()):
            if name.startswith("iterations:"):
                iterations.add_metric([name.removeprefix("iterations:")], value)
        yield iterations

    def _engines(self) -> Iterable[Metric]:
        engines = self._view.engines
        yield GaugeMetricFamily("orca_engines", "Engines present.", value=len(engines))
        slots = GaugeMetricFamily("orca_kv_slots", "K/V room in tokens.", labels=["engine"])
        for engine in engines:
            slots.add_metric([engine.name], engine.n_slots)
        yield slots
        present = {engine.name for engine in engines}
        for field_name, metric, text in (
            ("kv_slots_reserved", "orca_kv_slots_reserved", "K/V slots promised to sequences."),
            ("kv_slots_used", "orca_kv_slots_used", "K/V slots that hold keys and values."),
            ("batches_in_flight", "orca_batches_in_flight", "Iterations sent and not returned."),
        ):
            family = GaugeMetricFamily(metric, text, labels=["engine"])
            for name in sorted(present):
                family.add_metric([name], self._view.gauges.get(name, {}).get(field_name, 0))
            yield family


def parse_gauges(raw: Mapping[bytes, bytes]) -> dict[str, dict[str, float]]:
    """The pool's `gauges`: engine name -> the numbers of its last iteration's record."""
    parsed: dict[str, dict[str, float]] = {}
    for name, payload in raw.items():
        try:
            record = json.loads(payload)
        except ValueError:
            continue
        if isinstance(record, dict):
            numbers = {k: float(v) for k, v in record.items() if type(v) in (int, float)}
            parsed[name.decode(errors="replace")] = numbers
    return parsed
