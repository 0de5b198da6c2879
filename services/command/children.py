"""One child process: started with its log, stopped by signal, restarted with back-off.

Knows nothing of what the child does. Children get a session of their own, so that Ctrl-C in the
terminal reaches the supervisor alone and the drain keeps its order; on Linux the kernel ends them
when the supervisor is killed.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from services.command.state import Row

FIRST_BACKOFF = 0.5
LONGEST_BACKOFF = 30.0
STEADY_SECONDS = 60.0
SETTINGS_FAULT = 2
_PR_SET_PDEATHSIG = 1


@dataclass(slots=True)
class Child:
    """A process that should be running. `health` is the address whose `/readyz` tells of it."""

    service: str
    index: int
    command: list[str]
    log: Path
    url: str | None = None
    health: str = ""
    orphan_signal: int = signal.SIGKILL
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    failures: int = field(default=0)
    due: float = field(default=0.0)
    _log_start: int = field(default=0)

    @property
    def name(self) -> str:
        return f"{self.service} {self.index}"

    def start(self) -> None:
        """Start the process; its output goes to its log."""
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(),
                start_new_session=True,
                preexec_fn=die_with_parent(self.orphan_signal),  # noqa: PLW1509 - one thread
            )
        self.started = time.time()

    def exited(self) -> int | None:
        """The exit status of a process that has just ended, once; else None."""
        if self.process is None:
            return None
        status = self.process.poll()
        if status is not None:
            self.process = None
        return status

    def back_off(self) -> float:
        """Seconds until the next start; grows with failures in a row."""
        if time.time() - self.started > STEADY_SECONDS:
            self.failures = 0
        delay = min(FIRST_BACKOFF * 2.0**self.failures, LONGEST_BACKOFF)
        self.failures += 1
        self.due = time.monotonic() + delay
        return delay

    def signal(self, number: int) -> None:
        if self.process is not None:
            self.process.send_signal(number)

    def row(self) -> Row | None:
        if self.process is None:
            return None
        return Row(self.service, self.index, self.process.pid, round(self.started, 3), self.url)

    def last_lines(self, count: int = 5) -> list[str]:
        """The end of what this process logged, for a report of its death."""
        text = self.log.read_bytes()[self._log_start :].decode(errors="replace")
        return [line for line in text.splitlines() if line.strip()][-count:]


def environment() -> dict[str, str]:
    """What children inherit: all but our own settings, which they get as options.

    OpenMP waits passively: with its default a second busy process makes an iteration ten times
    slower, and a local stack always has one.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ORCA_")}
    return {"OMP_WAIT_POLICY": "passive", **inherited, "PYTHONUNBUFFERED": "1"}


def die_with_parent(number: int) -> Callable[[], None] | None:
    """A hook for the new process that asks the kernel for a signal when its parent dies."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()

    def hook() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os._exit(1)

    return hook
