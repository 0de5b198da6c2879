"""From settings to the processes that `orca up` starts: commands, ports, logs.

Resolving the model may mean a download, so it runs in a child process that a signal can stop;
torch is never imported here.
"""

import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from services.command import redis_server
from services.command.children import Child, die_with_parent, environment
from services.command.ports import free_port, gateway_ports, local_url_of, url_of
from services.command.settings import UpSettings, arguments, served_name_of, threads_of
from services.command.signals import Signals
from services.command.state import StateDir
from shared.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Plan:
    """What to start, and how to tell that it is up."""

    redis: Child | None
    services: list[Child]
    redis_url: str
    served_name: str
    url: str


def plan_of(settings: UpSettings, state: StateDir, signals: Signals) -> Plan | None:
    """Work out every child of the stack; None when a signal came meanwhile.

    Raises:
        SettingsError: a taken port, a missing model, no server for the pool.
    """
    ports = gateway_ports(settings.host, settings.port, settings.gateways)
    redis_url, redis_child = settings.redis_url, None
    if redis_url is None:
        redis_child = _redis(settings, state)
        redis_url = redis_child.url or ""
    else:
        redis_server.check(redis_url)
    folder = resolve_model(settings.model, signals)
    if folder is None:
        return None
    name = served_name_of(settings)
    common = ["--redis-url", redis_url, "--served-name", name]
    model = ["--model", str(folder)]
    services = [_inner("scheduler", i, common, settings, state) for i in range(settings.schedulers)]
    for i in range(settings.engines):
        own = [*model, "--name", f"engine-{i}", "--threads", str(threads_of(settings))]
        services.append(_inner("engine", i, common + own, settings, state))
    for i, port in enumerate(ports):
        own = [*model, "--host", settings.host, "--port", str(port), "--gateway-id", f"gateway-{i}"]
        local = local_url_of(settings.host, port)
        services.append(_service("gateway", i, common + own, settings, state, local))
    return Plan(redis_child, services, redis_url, name, url_of(settings.host, ports[0]))


def _redis(settings: UpSettings, state: StateDir) -> Child:
    port = free_port(redis_server.HOST)
    words = redis_server.command(redis_server.find_server(), port, state.redis, settings.redis_fsync)
    url = f"redis://{redis_server.HOST}:{port}/0"
    # The orphaned server is asked to end, not killed: it flushes its file on the way out.
    return Child("redis", 0, words, state.log("redis", 0), url, orphan_signal=signal.SIGTERM)


def _inner(service: str, index: int, words: list[str], settings: UpSettings, state: StateDir) -> Child:
    """A service without a door of its own: health and metrics are heard on this machine only."""
    port = free_port()
    own = [*words, "--metrics-port", str(port)]
    return _service(service, index, own, settings, state, local_url_of("127.0.0.1", port))


def _service(
    service: str, index: int, words: list[str], settings: UpSettings, state: StateDir, health: str
) -> Child:
    command = [sys.executable, "-m", f"services.{service}", *words, *arguments(settings, service)]
    shown = health if service == "gateway" else None
    return Child(service, index, command, state.log(service, index), shown, health)


def resolve_model(name: str, signals: Signals) -> Path | None:
    """The directory of a model, fetched if need be; None when a signal came meanwhile.

    Progress goes straight to the operator's standard error.

    Raises:
        SettingsError: there is no such model, or it cannot be had.
    """
    words = [sys.executable, "-m", "services.engine.model", "--model", name]
    child = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=environment(),
        start_new_session=True,
        preexec_fn=die_with_parent(signal.SIGKILL),  # noqa: PLW1509 - one thread
        text=True,
    )
    with child:
        while child.poll() is None:
            if signals.stops:
                child.terminate()
                return None
            signals.wait(1.0)
        lines = (child.stdout.read() if child.stdout else "").strip().splitlines()
    if child.returncode != 0 or not lines or not Path(lines[-1]).is_dir():
        raise SettingsError(f"the model {name!r} cannot be used (see above); name another with --model")
    return Path(lines[-1])
