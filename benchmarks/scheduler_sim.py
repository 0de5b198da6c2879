"""Iteration-level against request-level scheduling under a virtual clock, as in ORCA's evaluation.

    .venv/bin/python benchmarks/scheduler_sim.py --svg benchmarks/scheduler_sim.svg

For each set-up and mode the arrival rate is swept; at 1.25, 1.5, 2, 3 and 5 times the latency of
an idle system the highest rate that keeps the median normalised latency below it is read off, the
best batch size of each mode counting. The same seed prints the same tables.
"""

import argparse
import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from benchmarks.chart import Panel, Points, render
from benchmarks.engine_models import MEASURED, PAPER, EngineModel
from benchmarks.simulation import Mode, Simulation, poisson_trace

FACTORS = (1.25, 1.5, 2.0, 3.0, 5.0)
BATCH_SIZES = {Mode.ITERATION: (16, 128), Mode.REQUEST: (1, 4, 16), Mode.CLASSIC: (1, 4, 16)}
FIRST_RATE = {Mode.ITERATION: 1.0, Mode.REQUEST: 0.2, Mode.CLASSIC: 0.2}
"""As a share of what one request after the other would allow."""
RATE_STEP, MOST_RATES = 1.3, 40
IDLE_RATE = 1e-5
MEAN_ANSWER = 64.5


def run(
    model: EngineModel, mode: Mode, batch: int, rate: float, options: argparse.Namespace
) -> tuple[float, float]:
    """(requests per second served, median seconds per token)."""
    arrivals = poisson_trace(rate, options.requests, seed=options.seed)
    outcome = Simulation(model, max_batch_size=batch, mode=mode).run(arrivals)
    return outcome.throughput, outcome.median_latency


def sweep(
    model: EngineModel, mode: Mode, batch: int, idle: float, options: argparse.Namespace
) -> Iterator[tuple[float, float]]:
    """(arrival rate, median latency) until the latency is far above the idle one."""
    rate = FIRST_RATE[mode] / (MEAN_ANSWER * idle)
    for _ in range(MOST_RATES):
        _, latency = run(model, mode, batch, rate, options)
        yield rate, latency
        if latency > 1.3 * FACTORS[-1] * idle:
            return
        rate *= RATE_STEP


def rate_at(points: Points, latency: float) -> float:
    """The highest rate whose latency stays at or below `latency`, interpolated; 0 if none does."""
    best = 0.0
    for (x1, y1), (x2, y2) in pairwise(points):
        if y1 <= latency:
            best = x1
        if y1 <= latency < y2:
            share = math.log(latency / y1) / math.log(y2 / y1)
            best = x1 * (x2 / x1) ** share
    return best


def measure(model: EngineModel, options: argparse.Namespace) -> Panel:
    """Print one set-up's table; returns its curves."""
    _, idle = run(model, Mode.REQUEST, 1, IDLE_RATE, options)
    curves = {
        mode: [list(sweep(model, mode, batch, idle, options)) for batch in sizes]
        for mode, sizes in BATCH_SIZES.items()
    }
    print(f"\n{model.name}: {1e3 * idle:.0f} ms a token when idle, {model.n_slots} K/V slots\n")
    print("| latency | " + " | ".join(f"{mode}, requests/s" for mode in Mode) + " | ratio | classic ratio |")
    print("|---|---|---|---|---|---|")
    for factor in FACTORS:
        rates = {mode: max(rate_at(c, factor * idle) for c in curves[mode]) for mode in Mode}
        ratios = [_ratio(rates[Mode.ITERATION], rates[mode]) for mode in (Mode.REQUEST, Mode.CLASSIC)]
        cells = [f"{rates[mode]:.3g}" for mode in Mode] + ratios
        print(f"| {factor:g} x | " + " | ".join(cells) + " |", flush=True)
    panel = Panel(model.name, "requests per second", "median ms per token", 1e3 * FACTORS[-1] * idle)
    for mode in Mode:
        best = max(curves[mode], key=lambda c: rate_at(c, 2 * idle))
        panel.lines[mode.value] = [(rate, 1e3 * latency) for rate, latency in best]
    return panel


def _ratio(ours: float, theirs: float) -> str:
    return f"{ours / theirs:.1f}" if theirs else "-"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=600, help="length of each run's trace")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="only set-ups whose name contains this")
    parser.add_argument("--svg", type=Path, help="write the curves here")
    options = parser.parse_args()
    models: tuple[EngineModel, ...] = (MEASURED, *PAPER)
    panels = [measure(model, options) for model in models if options.only in model.name]
    if options.svg:
        options.svg.write_text(render(panels))


if __name__ == "__main__":
    main()
