"""How long an engine's pipeline stages take for a batch: two sets of constants for the simulator.

`MEASURED` is this project's engine on the development machine (`iteration_cost.py` prints it).
The set-ups of ORCA's paper are derived from the hardware's data sheet; every assumption is a
field or a constant here. Knows shapes of batches and seconds, nothing of requests.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Work:
    """What a batch asks of every stage."""

    members: int
    tokens: int
    """Input tokens of all members: T."""
    rows: int
    """K/V rows that attention reads, summed over the members."""
    pairs: int
    """Query-key pairs of attention, summed over the members."""

    @classmethod
    def of(cls, parts: Iterable[tuple[int, int]]) -> "Work":
        """From (input tokens, K/V rows before the iteration) of each member."""
        members = tokens = rows = pairs = 0
        for n_tokens, n_kv in parts:
            members += 1
            tokens += n_tokens
            rows += n_kv + n_tokens
            pairs += n_tokens * n_kv + n_tokens * (n_tokens + 1) // 2
        return cls(members, tokens, rows, pairs)


class EngineModel(Protocol):
    """An engine as the simulator sees it."""

    @property
    def name(self) -> str: ...
    @property
    def n_stages(self) -> int: ...
    @property
    def n_slots(self) -> int: ...
    def stage_seconds(self, work: Work) -> float:
        """Time of one stage for one iteration of a batch, its hand-over included."""


@dataclass(frozen=True)
class MeasuredEngine:
    """A straight line through measured iterations; one stage."""

    name: str
    n_slots: int
    base: float
    per_token: float
    per_member: float
    per_row: float
    """All four in seconds."""
    n_stages: int = 1

    def stage_seconds(self, work: Work) -> float:
        return (
            self.base
            + self.per_token * work.tokens
            + self.per_member * work.members
            + self.per_row * work.rows
        )


MEASURED = MeasuredEngine(
    "SmolLM2-135M, measured", n_slots=16_384, base=0.1, per_token=0.002, per_member=0.007, per_row=0.0
)

# -- the paper's hardware: NVIDIA A100 SXM4 40 GB, eight to a machine (data sheet), 16-bit numbers

PEAK_FLOPS, PEAK_BANDWIDTH, MEMORY = 312e12, 1.555e12, 40e9
NUMBER_BYTES = 2
COMPUTE_EFFICIENCY = 0.5
"""Share of the peak that large matrix products reach; assumed."""
BANDWIDTH_EFFICIENCY = 0.75
"""Share of the peak that reading weights and K/V reaches; assumed."""
ALL_REDUCE_LATENCY, ALL_REDUCE_BANDWIDTH = 20e-6, 200e9
"""Per all-reduce over NVLink within a machine; assumed. Two in every layer."""
HAND_OVER_LATENCY, HAND_OVER_BANDWIDTH = 50e-6, 25e9
"""Hidden states to the next stage over 200 Gbit/s InfiniBand; latency assumed."""
LAYER_LAUNCH = 50e-6
"""What a layer costs however small the batch: kernel launches, norms, residuals; assumed."""
ITERATION_OVERHEAD = 1e-3
"""Scheduling, control messages and sampling per iteration and stage; assumed."""
SPARE_MEMORY = 3e9
"""Per GPU for activations and the runtime, taken from the K/V; assumed."""


@dataclass(frozen=True)
class PaperEngine:
    """A model of ORCA's evaluation, by the roofline of its GPUs."""

    name: str
    n_layers: int
    hidden: int
    n_stages: int
    gpus: int
    """GPUs of one stage (tensor parallel)."""

    @property
    def parameters(self) -> float:
        """12 h^2 per layer: attention 4, the two feed-forward matrices 8; embeddings left out."""
        return 12.0 * self.n_layers * self.hidden**2

    @property
    def n_slots(self) -> int:
        all_gpus = self.gpus * self.n_stages
        free = all_gpus * (MEMORY - SPARE_MEMORY) - NUMBER_BYTES * self.parameters
        return int(free / (2 * NUMBER_BYTES * self.n_layers * self.hidden))

    def stage_seconds(self, work: Work) -> float:
        if not work.members:
            return 0.0
        layers = self.n_layers / self.n_stages
        flops = COMPUTE_EFFICIENCY * PEAK_FLOPS * self.gpus
        bandwidth = BANDWIDTH_EFFICIENCY * PEAK_BANDWIDTH * self.gpus
        weights = self.parameters / self.n_stages
        # Linear layers read every weight once a batch; attention reads every member's K/V.
        linear = max(2 * weights * work.tokens / flops, NUMBER_BYTES * weights / bandwidth)
        attention = layers * max(
            4 * self.hidden * work.pairs / flops, 2 * NUMBER_BYTES * self.hidden * work.rows / bandwidth
        )
        hidden_bytes = NUMBER_BYTES * self.hidden * work.tokens
        overhead = ITERATION_OVERHEAD + layers * LAYER_LAUNCH
        if self.gpus > 1:
            share = 2 * (self.gpus - 1) / self.gpus
            overhead += 2 * layers * (ALL_REDUCE_LATENCY + share * hidden_bytes / ALL_REDUCE_BANDWIDTH)
        if self.n_stages > 1:
            overhead += HAND_OVER_LATENCY + hidden_bytes / HAND_OVER_BANDWIDTH
        return linear + attention + overhead


PAPER = (
    PaperEngine("13B on 1 worker", n_layers=40, hidden=5120, n_stages=1, gpus=1),
    PaperEngine("175B on 2 workers", n_layers=96, hidden=12288, n_stages=2, gpus=8),
    PaperEngine("341B on 4 workers", n_layers=120, hidden=15360, n_stages=4, gpus=8),
)
