"""What one iteration costs on this machine, as four numbers that the scheduler's simulator takes.

    .venv/bin/python benchmarks/iteration_cost.py

Runs `execute_iteration` without Redis on batches of many shapes, several rounds over all of them,
and fits seconds = base + token * T + member * B + row * R to the medians: T input tokens, B
members, R rows of K/V read by attention. Prints the table of shapes and the fit.
"""

import argparse
import os
import statistics
import time

import numpy as np

from services.engine.__main__ import build_executor
from services.engine.iteration import Executor
from services.engine.settings import EngineSettings
from shared.protocol.batch import BatchDescriptor, ContinuingEntry, FirstEntry
from shared.protocol.request import SamplingParams

DECODES = ((1, 32), (1, 512), (4, 32), (4, 512), (8, 32), (8, 512), (16, 32), (16, 256), (16, 512))
"""(members, K/V rows of each before the iteration)"""
PREFILLS = ((1, 32), (1, 128), (1, 512), (2, 256), (4, 128), (8, 32))
"""(members, prompt tokens of each)"""
Shape = tuple[str, int, int]


def prompt(i: int, n_tokens: int) -> tuple[int, ...]:
    return tuple(1000 + (37 * i + 11 * k) % 20_000 for k in range(n_tokens))


def timed(executor: Executor, entries: list[FirstEntry | ContinuingEntry]) -> tuple[float, list[int]]:
    """Seconds of one iteration, and its tokens."""
    start = time.perf_counter()
    done = executor.execute_iteration(BatchDescriptor(iteration=1, fence="", entries=tuple(entries)))
    return time.perf_counter() - start, [output.token or 0 for output in done.outputs]


def run_shape(executor: Executor, shape: Shape) -> float:
    """Seconds of one iteration of a shape: the prefill, or the second decode after it."""
    kind, members, n_tokens = shape
    sampling = SamplingParams(max_new_tokens=8, temperature=0.0, ignore_eos=True)
    entries: list[FirstEntry | ContinuingEntry] = [
        FirstEntry(id=f"s{i}", attempt=0, group=f"s{i}", tokens=prompt(i, n_tokens), n_prompt=n_tokens,
                   reserved_slots=n_tokens + 8, sampling=sampling)
        for i in range(members)
    ]  # fmt: skip
    seconds, tokens = timed(executor, entries)
    for step in range(2 if kind == "decode" else 0):
        again: list[FirstEntry | ContinuingEntry] = [
            ContinuingEntry(
                id=f"s{i}", attempt=0, last_token=tokens[i], position=n_tokens + step, index=step + 1
            )
            for i in range(members)
        ]
        seconds, tokens = timed(executor, again)
    executor.drop_all()
    return seconds


def features(shape: Shape) -> tuple[float, float, float, float]:
    """1, input tokens, members, K/V rows read."""
    kind, members, n_tokens = shape
    return 1.0, members * (1 if kind == "decode" else n_tokens), members, members * n_tokens


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    options = parser.parse_args()
    words = ["--redis-url", "redis://unused", "--served-name", "bench", "--threads", str(options.threads)]
    executor = build_executor(EngineSettings.load(words, prog="bench", description=""))
    shapes: list[Shape] = [("decode", *s) for s in DECODES] + [("prefill", *s) for s in PREFILLS]
    rounds = [[run_shape(executor, shape) for shape in shapes] for _ in range(options.rounds)]
    medians = [statistics.median(column) for column in zip(*rounds, strict=True)]
    matrix = np.array([features(shape) for shape in shapes])
    # Relative errors count: a long prefill must not drown the decodes.
    weights = 1 / np.array(medians)
    fit, *_ = np.linalg.lstsq(matrix * weights[:, None], np.ones(len(shapes)), rcond=None)
    print(
        "| phase | members | tokens or K/V rows of each | measured, ms | fitted, ms |\n|---|---|---|---|---|"
    )
    for (kind, members, n_tokens), seconds, guess in zip(shapes, medians, matrix @ fit, strict=True):
        print(f"| {kind} | {members} | {n_tokens} | {1e3 * seconds:.1f} | {1e3 * guess:.1f} |")
    names = ("base", "per token", "per member", "per K/V row")
    print("\nseconds: " + ", ".join(f"{n} {value:.3g}" for n, value in zip(names, fit, strict=True)))


if __name__ == "__main__":
    main()
