"""Free ports, and a clear word about taken ones."""

import errno
import socket
from collections.abc import Sequence

from shared.errors import SettingsError

TRIES = 100


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on just now."""
    with socket.socket(_family(host)) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def gateway_ports(host: str, first: int, count: int) -> Sequence[int]:
    """The ports of `count` gateways in a row; from a free place where `first` is 0.

    Raises:
        SettingsError: a port is taken, or the host is not an address of this machine.
    """
    if first:
        for port in range(first, first + count):
            _check(host, port)
        return range(first, first + count)
    for _ in range(TRIES):
        try:
            base = free_port(host)
        except OSError as error:
            raise SettingsError(f"cannot listen on {host}: {error.strerror}; choose another --host") from None
        if base + count - 1 <= 65535 and not any(_taken(host, port) for port in range(base, base + count)):
            return range(base, base + count)
    raise SettingsError(f"found no {count} free ports in a row on {host}; choose --port yourself")


def _check(host: str, port: int) -> None:
    fault = _taken(host, port)
    if fault is None:
        return
    if fault.errno == errno.EADDRINUSE:
        reason = "is already in use; stop what listens there, or choose another --port (0 picks a free one)"
    elif fault.errno == errno.EACCES:
        reason = "may not be used by this user; choose a --port above 1023"
    else:
        reason = f"cannot be used: {fault.strerror}; choose another --host or --port"
    raise SettingsError(f"port {port} on {host} {reason}")


def _taken(host: str, port: int) -> OSError | None:
    try:
        with socket.socket(_family(host)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            probe.listen()
    except OSError as error:
        return error
    return None


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def url_of(host: str, port: int) -> str:
    """The address to show."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def local_url_of(host: str, port: int) -> str:
    """The address to call from this machine: a wildcard is reached over loopback."""
    return url_of({"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host), port)  # noqa: S104
