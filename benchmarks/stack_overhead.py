"""How much of the engine's own speed the full stack keeps.

    .venv/bin/python benchmarks/stack_overhead.py

One run alternates, round by round, between the stack (`orca up`: gateway, pool, scheduler and
engine as processes; streamed completions over HTTP) and `execute_iteration` driven in a process
of its own without Redis, on batches of the same shape: the same prompts, the same number of
sequences in each iteration, the same number of tokens, the same threads and OpenMP settings.
Both are timed from the first request to the last token. The median of the rounds counts.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

CONCURRENCY = (1, 8, 16)
PROMPT_TOKENS, NEW_TOKENS = 32, 64


def prompt(i: int) -> list[int]:
    """Token ids of the i-th sequence's prompt; all differ."""
    return [1000 + (37 * i + 11 * k) % 20_000 for k in range(PROMPT_TOKENS)]


def stream_one(client: httpx.Client, model: str, i: int) -> int:
    """One streamed completion; returns its number of tokens as usage counts them."""
    body = {"model": model, "prompt": prompt(i), "max_tokens": NEW_TOKENS, "temperature": 0,
            "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}  # fmt: skip
    tokens = 0
    with client.stream("POST", "/v1/completions", json=body) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                usage = json.loads(line[6:]).get("usage")
                tokens = usage["completion_tokens"] if usage else tokens
    return tokens


def stack_round(url: str, model: str, n: int) -> float:
    """Output tokens per second of n concurrent streams."""
    limits = httpx.Limits(max_connections=n)
    with httpx.Client(base_url=url, timeout=600, limits=limits) as client, ThreadPoolExecutor(n) as threads:
        start = time.perf_counter()
        tokens = sum(threads.map(lambda i: stream_one(client, model, i), range(n)))
        return tokens / (time.perf_counter() - start)


def engine_alone(threads: int) -> None:
    """Child process: for each n read from stdin, run the same work without the stack."""
    from services.engine.__main__ import build_executor
    from services.engine.settings import EngineSettings
    from shared.protocol.batch import BatchDescriptor, ContinuingEntry, FirstEntry
    from shared.protocol.request import SamplingParams

    words = ["--redis-url", "redis://unused", "--served-name", "bench", "--threads", str(threads)]
    executor = build_executor(EngineSettings.load(words, prog="bench", description=""))
    sampling = SamplingParams(max_new_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True)
    print("ready", flush=True)
    for line in sys.stdin:
        n = int(line)
        start, number = time.perf_counter(), 1
        entries: tuple[FirstEntry | ContinuingEntry, ...] = tuple(
            FirstEntry(id=f"s{i}", attempt=0, group=f"s{i}", tokens=tuple(prompt(i)), n_prompt=PROMPT_TOKENS,
                       reserved_slots=PROMPT_TOKENS + NEW_TOKENS, sampling=sampling)
            for i in range(n)
        )  # fmt: skip
        while entries:
            outputs = executor.execute_iteration(
                BatchDescriptor(iteration=number, fence="", entries=entries)
            ).outputs
            entries = tuple(
                ContinuingEntry(id=o.id, attempt=0, last_token=o.token or 0,
                                position=PROMPT_TOKENS + o.index, index=o.index + 1)
                for o in outputs
                if not o.finish_reason
            )  # fmt: skip
            number += 1
        print(n * NEW_TOKENS / (time.perf_counter() - start), flush=True)
        executor.drop_all()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--engine-alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine_alone:
        engine_alone(options.threads)
        return
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    python = [sys.executable, "-m"]
    with tempfile.TemporaryDirectory() as home:
        words = ["services.cli", "up", "--port", "0", "--state-dir", str(Path(home) / "state")]
        stack = subprocess.Popen([*python, *words], stdout=subprocess.PIPE, text=True, env=environment)
        alone = subprocess.Popen(
            [sys.executable, __file__, "--engine-alone", "--threads", str(options.threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        try:
            measure(stack, alone, options.rounds)
        finally:
            alone.kill()
            stack.terminate()
            stack.wait(60)


def measure(stack: "subprocess.Popen[str]", alone: "subprocess.Popen[str]", rounds: int) -> None:
    """Alternate between both and print the table."""
    assert stack.stdout is not None
    assert alone.stdin is not None
    assert alone.stdout is not None
    url = next(line for line in stack.stdout if line.startswith("ready ")).split()[1]
    model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    assert alone.stdout.readline() == "ready\n"
    print("| concurrent | stack, tokens/s | engine alone, tokens/s | stack / engine |\n|---|---|---|---|")
    for n in CONCURRENCY:
        stack_round(url, model, n)
        pairs = []
        for _ in range(rounds):
            through = stack_round(url, model, n)
            print(n, file=alone.stdin, flush=True)
            pairs.append((through, float(alone.stdout.readline())))
        through, direct = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(a / b for a, b in pairs)
        print(f"| {n} | {through:.1f} | {direct:.1f} | {100 * ratio:.0f} % |", flush=True)


if __name__ == "__main__":
    main()
