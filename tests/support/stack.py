"""A real `orca up` for tests: its ready line, its processes, and an end that leaves nothing behind."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import psutil

START_SECONDS = 120.0
STOP_SECONDS = 60.0
ORCA = [sys.executable, "-m", "services.cli"]


class Stack:
    """One running stack; use it as a context manager."""

    def __init__(self, home: Path, model: Path, *options: str) -> None:
        self.state_dir = home / "state"
        self._errors = home / "stderr.txt"
        self._words = [*ORCA, "up", "--port", "0", "--state-dir", str(self.state_dir)]
        self._words += ["--model", str(model), "--served-name", "tiny", *options]
        self.url = ""
        self.ready_line = ""

    def __enter__(self) -> Self:
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                self._words, stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL, text=True
            )
        self.ready_line = self._first_line()
        self.url = self.ready_line.removeprefix("ready ").strip()
        self.client = httpx.Client(base_url=self.url, timeout=60)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        if kind is not None:
            sys.stderr.write(self.report())
        self._end()

    def _first_line(self) -> str:
        assert self.process.stdout is not None
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            if select.select([self.process.stdout], [], [], 0.5)[0]:
                line = str(self.process.stdout.readline())
                if line:
                    return line
        report = self.report()
        self._end()
        raise AssertionError(f"no ready line:\n{report}")

    def _end(self) -> None:
        if self.process.poll() is None:
            children = psutil.Process(self.process.pid).children(recursive=True)
            self.process.kill()
            psutil.wait_procs(children, timeout=10)
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    @property
    def errors(self) -> str:
        """What the supervisor has said so far."""
        return self._errors.read_text()

    def report(self) -> str:
        """Everything that helps to see why a test failed."""
        logs = sorted((self.state_dir / "logs").glob("*.log"))
        ends = [f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in logs]
        return "\n".join([self.errors, *ends])

    def ps(self) -> list[dict[str, Any]]:
        """The rows of `orca ps --json`."""
        words = [*ORCA, "ps", "--json", "--state-dir", str(self.state_dir)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True)
        rows: list[dict[str, Any]] = json.loads(done.stdout)
        return rows

    def pid(self, service: str, index: int = 0) -> int:
        """The process id of one child."""
        return next(int(r["pid"]) for r in self.ps() if (r["service"], r["index"]) == (service, index))

    def stop(self, number: int = signal.SIGINT) -> int:
        """Ask the stack to end; returns its exit code."""
        os.kill(self.process.pid, number)
        return self.process.wait(STOP_SECONDS)

    def wait_until(self, what: str, done: Any, seconds: float = 60.0) -> None:
        """Poll for something that another process brings about."""
        deadline = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < deadline, f"{what} did not happen in {seconds:g} s\n{self.report()}"
            assert self.process.poll() is None, f"the stack ended while waiting for: {what}\n{self.report()}"
            time.sleep(0.05)

    def complete(self, prompt: str = "hello", **fields: Any) -> dict[str, Any]:
        """One completion, not streamed; greedy and without an early end unless told otherwise."""
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        answer = self.client.post("/v1/completions", json={**body, **fields})
        assert answer.status_code == 200, answer.text
        content: dict[str, Any] = answer.json()
        return content

    def stream(self, prompt: str = "hello", **fields: Any) -> list[dict[str, Any]]:
        """The events of one streamed completion, without the closing `[DONE]`."""
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        with self.client.stream("POST", "/v1/completions", json={**body, "stream": True, **fields}) as answer:
            assert answer.status_code == 200, answer.read()
            lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
        assert lines[-1] == "[DONE]"
        return [json.loads(line) for line in lines[:-1]]


def text_of(events: list[dict[str, Any]]) -> str:
    """The whole text of a streamed completion."""
    return "".join(choice["text"] for event in events for choice in event["choices"])
