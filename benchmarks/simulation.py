"""A scheduler's real state and selection under a virtual clock, with a modelled engine.

Nothing here decides who runs: arrivals and returns are fed to `SchedulerState` as the inbox feeds
them, and its decisions take as long as the engine model says. The same seed gives the same run.
"""

import heapq
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from statistics import median

from benchmarks.engine_models import EngineModel, Work
from services.scheduler.effects import Decision
from services.scheduler.selection import select, select_request_level
from services.scheduler.state import SchedulerState
from shared.protocol.inbox import EngineJoined, Output, Reported, Returned, Submitted
from shared.protocol.request import GenerationRequest, Rendering, SamplingParams
from shared.protocol.result import EngineReport, EngineStatus, Phase
from shared.protocol.wire import encode

ENGINE = "engine"
WARM_UP = 0.1
"""Share of the first arrivals that no statistic counts."""


class Mode(StrEnum):
    """How batches are made."""

    ITERATION = "iteration-level"
    REQUEST = "request-level"
    """A batch runs to its end; kernels batch prompts of any lengths and drop who has ended."""
    CLASSIC = "request-level, classic kernels"
    """Besides, only equal shapes are batched: one prefill of the shortest prompt's length, the
    rest of longer prompts token by token, and who has ended keeps its row."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a trace; it runs to its limit."""

    at: float
    n_prompt: int
    n_generated: int


def poisson_trace(
    rate: float, n: int, *, seed: int, prompt: tuple[int, int] = (32, 512), answer: tuple[int, int] = (1, 128)
) -> list[Arrival]:
    """ORCA's trace: Poisson arrivals at `rate` a second, uniform prompts and answers.

    For one seed all rates have the same requests with the same relative distances.
    """
    draw = random.Random(seed)
    now, arrivals = 0.0, []
    for _ in range(n):
        now += draw.expovariate(1.0) / rate
        arrivals.append(Arrival(now, draw.randint(*prompt), draw.randint(*answer)))
    return arrivals


@dataclass
class Served:
    """What became of one arrival; times in seconds of the virtual clock."""

    arrival: Arrival
    first_token: float = 0.0
    last_token: float = 0.0

    @property
    def normalised_latency(self) -> float:
        """Seconds per generated token, from arrival to the last token."""
        return (self.last_token - self.arrival.at) / self.arrival.n_generated


@dataclass
class Outcome:
    """One simulated run."""

    served: list[Served]
    iterations: list[tuple[str, ...]] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    """Seconds between two tokens of a sequence, over all sequences."""

    @cached_property
    def median_latency(self) -> float:
        """Median normalised latency, in seconds per token."""
        counted = self.served[int(WARM_UP * len(self.served)) :]
        return median(one.normalised_latency for one in counted)

    @property
    def throughput(self) -> float:
        """Requests per second, from the first arrival to the last token."""
        start = self.served[0].arrival.at
        return len(self.served) / (max(one.last_token for one in self.served) - start)


class Simulation:
    """One engine, its scheduler and a clock that jumps from event to event."""

    def __init__(self, model: EngineModel, *, max_batch_size: int, mode: Mode = Mode.ITERATION) -> None:
        self.model, self.mode = model, mode
        self.state = SchedulerState(
            max_batch_size=max_batch_size,
            select=select if mode is Mode.ITERATION else select_request_level,
            fence="1:simulated",
        )
        self.outcome = Outcome([])
        self._now = 0.0
        self._free_at = [0.0] * model.n_stages
        self._under_way: list[tuple[float, int, Decision]] = []
        self._served: dict[str, Served] = {}
        self._join(max_batch_size)

    def run(self, arrivals: Iterable[Arrival]) -> Outcome:
        """Serve a trace to its end."""
        for at, together in groupby(arrivals, key=attrgetter("at")):
            while self._under_way and self._under_way[0][0] <= at:
                self._return()
            self._now = at
            for arrival in together:
                self._submit(arrival)
            self._dispatch()
        while self._under_way:
            self._return()
        return self.outcome

    def _join(self, max_batch_size: int) -> None:
        status = EngineStatus(
            id=ENGINE,
            name=ENGINE,
            n_slots=self.model.n_slots,
            max_model_len=self.model.n_slots,
            stages=self.model.n_stages,
            max_batch_size=max_batch_size,
        )
        self.state.hear(EngineJoined(status=status))
        report = EngineReport(fence=self.state.fence, status=status, last_iteration=0, held=())
        self.state.hear(Reported(engine=ENGINE, report=encode(report).decode()))

    def _submit(self, arrival: Arrival) -> None:
        number = len(self._served)
        name = f"r{number}"
        request = GenerationRequest(
            id=name,
            group=name,
            n_prompt=arrival.n_prompt,
            sampling=SamplingParams(max_new_tokens=arrival.n_generated),
            rendering=Rendering(route="completions", created=0),
        )
        self._served[name] = served = Served(arrival)
        self.outcome.served.append(served)
        refused = self.state.hear(Submitted(id=name, arrival=number, request=encode(request).decode()))
        if refused:
            raise ValueError(f"{arrival} never fits into {self.model.n_slots} K/V slots")

    def _dispatch(self) -> None:
        while (decision := self.state.decide(ENGINE)) is not None:
            iteration = self.mode is Mode.ITERATION
            until = self._iteration_end(decision) if iteration else self._batch_end(decision)
            self.state.scheduled(decision)
            if decision.members:
                self.outcome.iterations.append(tuple(s.id for s in decision.members))
            heapq.heappush(self._under_way, (until, decision.iteration, decision))

    def _iteration_end(self, decision: Decision) -> float:
        """When one iteration leaves the last stage; each stage works on one batch at a time."""
        seconds = self.model.stage_seconds(Work.of(_parts(decision)))
        now = self._now
        for stage, free_at in enumerate(self._free_at):
            now = self._free_at[stage] = max(now, free_at) + seconds
        return now

    def _batch_end(self, decision: Decision) -> float:
        """When a whole batch is done: its microbatches, one per stage, go round the pipeline."""
        stages = self.model.n_stages
        lengths = [(s.request.n_prompt, s.request.sampling.max_new_tokens) for s in decision.members]
        steps = _classic_steps(lengths) if self.mode is Mode.CLASSIC else _steps(lengths)
        seconds = 0.0
        for parts in steps:
            slowest = max(self.model.stage_seconds(Work.of(parts[s::stages])) for s in range(stages))
            seconds += stages * slowest
        return self._now + seconds

    def _return(self) -> None:
        """The earliest batch comes back, and its place is filled."""
        self._now, number, decision = heapq.heappop(self._under_way)
        outputs = tuple(self._output(s.id, s.n_output) for s in decision.members)
        self.state.hear(Returned(engine=ENGINE, iteration=number, outputs=outputs))
        self._dispatch()

    def _output(self, name: str, index: int) -> Output:
        served = self._served[name]
        if index == 0:
            served.first_token = self._now
        else:
            self.outcome.gaps.append(self._now - served.last_token)
        served.last_token = self._now
        ended = self.mode is not Mode.ITERATION or index + 1 == served.arrival.n_generated
        return Output(id=name, attempt=0, accepted=True, index=index, token=0, ended=ended)


Parts = list[tuple[int, int]]
"""(input tokens, K/V rows before) of each member."""


def _parts(decision: Decision) -> Parts:
    return [
        (1, s.n_kv) if s.phase is Phase.DECODE else (s.request.n_prompt + s.n_output, 0)
        for s in decision.members
    ]


def _steps(lengths: list[tuple[int, int]]) -> Iterator[Parts]:
    """A batch's iterations from (prompt, answer) lengths: prefill together, then decode who is left."""
    if not lengths:
        return
    yield [(n_prompt, 0) for n_prompt, _ in lengths]
    for step in range(1, max(generated for _, generated in lengths)):
        yield [(1, n_prompt + step - 1) for n_prompt, generated in lengths if step < generated]


def _classic_steps(lengths: list[tuple[int, int]]) -> Iterator[Parts]:
    """The same with one shape per step: every row takes one more token until the last has ended."""
    if not lengths:
        return
    shortest = min(n_prompt for n_prompt, _ in lengths)
    yield [(shortest, 0)] * len(lengths)
    for n_kv in range(shortest, max(n_prompt + generated for n_prompt, generated in lengths) - 1):
        yield [(1, n_kv)] * len(lengths)
