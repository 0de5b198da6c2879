"""`orca up`: the whole stack as child processes of one supervisor.

Starts Redis and then all the others; stops gateways, engines, schedulers and Redis in this order,
so that open streams end with their answers. Knows processes and ports; every decision about
requests is the services' own.
"""

import http.client
import math
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence

from services.command import redis_server
from services.command.children import SETTINGS_FAULT, Child
from services.command.plan import Plan, plan_of
from services.command.settings import UpSettings
from services.command.signals import Signals
from services.command.state import StateDir
from shared.errors import OrcaError, SettingsError

POLL_SECONDS = 0.2
PROBE_SECONDS = 3.0
PATIENCE_SECONDS = 60.0
IDLE_SECONDS = 60.0
TRIES_BEFORE_READY = 5
STOP_SECONDS = 20.0
STOP_ORDER = ("gateway", "engine", "scheduler", "redis")
"""Engines hand over or finish what they hold, which needs a scheduler to hear them."""
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opens addresses of this machine, whatever proxy the environment names."""


class StartFailed(OrcaError):
    """The stack cannot come up; the message says which part and why."""


class Stopped(Exception):
    """A stop signal came while the stack was starting."""


def say(text: str) -> None:
    """News for the operator; standard output is kept for the ready line."""
    print(f"orca: {text}", file=sys.stderr, flush=True)


def up(settings: UpSettings) -> int:
    """Run the stack until a signal; returns the exit code.

    Raises:
        SettingsError: it cannot start as configured.
        StartFailed: a part does not start.
    """
    state = StateDir(settings.state_dir)
    with state.hold(), Signals() as signals:
        supervisor = Supervisor(settings, state, signals)
        try:
            supervisor.start()
            supervisor.watch()
        except Stopped:
            pass
        finally:
            supervisor.stop()
    return 1 if supervisor.killed else 0


class Supervisor:
    """Owns the children from their start to the last one's end."""

    def __init__(self, settings: UpSettings, state: StateDir, signals: Signals) -> None:
        self._settings = settings
        self._state = state
        self._signals = signals
        self._children: list[Child] = []
        self._ready = False
        self.killed = False

    def start(self) -> None:
        """Bring everything up and print the ready line."""
        plan = plan_of(self._settings, self._state, self._signals)
        if plan is None:
            raise Stopped
        if plan.redis is not None:
            self._launch([plan.redis])
            self._until(lambda: redis_server.answers(plan.redis_url))
        self._launch(plan.services)
        self._until(lambda: all(_is_ready(child.health) for child in plan.services))
        self._ready = True
        print(f"ready {plan.url}", flush=True)
        self._report_openness(plan)

    def watch(self) -> None:
        """Restart what dies, until a stop signal comes."""
        while not self._signals.stops:
            self._signals.wait(min(self._tend(), IDLE_SECONDS))

    def stop(self) -> None:
        """Drain in order; a second signal ends everything at once."""
        if self._ready:
            say("stopping: no new requests; open streams may finish")
        grace = self._settings.grace if self._ready else 0.0
        for service in STOP_ORDER:
            patience = STOP_SECONDS + (grace if service in ("gateway", "engine") else 0.0)
            self._end([child for child in self._children if child.service == service], patience)
        self._state.write([])

    def _launch(self, children: Sequence[Child]) -> None:
        self._children += children
        for child in children:
            child.start()
        self._write_rows()

    def _until(self, done: Callable[[], bool]) -> None:
        """Tend the children until something is true; say so when it takes long."""
        patience = time.monotonic() + PATIENCE_SECONDS
        while not done():
            if self._signals.stops:
                raise Stopped
            if time.monotonic() > patience:
                patience = math.inf
                say(f"this takes long; what the processes say is in {self._state.path / 'logs'}")
            self._tend()
            self._signals.wait(POLL_SECONDS)

    def _tend(self) -> float:
        """Notice deaths and restart what is due; returns seconds until something is due again."""
        changed = False
        for child in self._children:
            status = child.exited()
            if status is not None:
                self._died(child, status)
                changed = True
            if child.process is None and child.due <= time.monotonic():
                child.start()
                changed = True
        if changed:
            self._write_rows()
        due = [child.due - time.monotonic() for child in self._children if child.process is None]
        return max(0.0, min(due, default=IDLE_SECONDS))

    def _died(self, child: Child, status: int) -> None:
        how = f"signal {-status}" if status < 0 else f"exit code {status}"
        lines = "\n".join(f"    {line}" for line in child.last_lines())
        if not self._ready and (status == SETTINGS_FAULT or child.failures + 1 >= TRIES_BEFORE_READY):
            raise StartFailed(f"{child.name} cannot start ({how}); the end of {child.log}:\n{lines}")
        delay = child.back_off()
        say(f"{child.name} ended with {how}; starting it again in {delay:g} s; see {child.log}")

    def _end(self, children: Sequence[Child], patience: float) -> None:
        running = [child for child in children if child.process is not None]
        for child in running:
            child.signal(signal.SIGTERM)
        deadline = time.monotonic() + patience
        while running:
            left = deadline - time.monotonic()
            if left <= 0 or self._signals.stops > 1:
                self.killed = True
                for child in running:
                    say(
                        f"{child.name} is killed: "
                        + ("it did not stop in time" if left <= 0 else "asked twice")
                    )
                    child.signal(signal.SIGKILL)
                    if child.process is not None:
                        child.process.wait()
            else:
                self._signals.wait(min(left, POLL_SECONDS))
            running = [child for child in running if child.exited() is None and child.process is not None]

    def _write_rows(self) -> None:
        rows = (child.row() for child in self._children)
        self._state.write([row for row in rows if row is not None])

    def _report_openness(self, plan: Plan) -> None:
        say(f"serving {plan.served_name}; logs in {self._state.path / 'logs'}; Ctrl-C stops")
        if self._settings.api_key_file is None:
            say(f"no --api-key-file: anyone who reaches {self._settings.host} may use this server")


def _is_ready(url: str) -> bool:
    try:
        with DIRECT.open(f"{url}/readyz", timeout=PROBE_SECONDS) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, http.client.HTTPException, OSError):
        return False


def main(argv: Sequence[str]) -> int:
    """Read the settings and run; start-up faults are one message and exit code 2."""
    try:
        settings = UpSettings.load(argv, prog="orca up", description=DESCRIPTION, examples=EXAMPLES)
        return up(settings)
    except (SettingsError, StartFailed) as error:
        say(str(error))
        return SETTINGS_FAULT


DESCRIPTION = "Run the whole stack on this machine: Redis-compatible server, gateway, scheduler, engines."
EXAMPLES = """\
  orca up                                   the demo model on http://127.0.0.1:8000
  orca up --model ./my-model --engines 2    a Hugging Face directory, two engines
  orca up --redis-url redis://cache:6379/0  an existing server instead of the embedded one"""
