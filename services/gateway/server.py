"""The process around the application: socket, signals, drain.

uvicorn would cut open streams on its own terms, so signals are handled here. The first SIGTERM or
SIGINT turns readiness off and refuses new work; open streams get `--grace` seconds to end, then an
error event; only then does the HTTP server stop. A second signal ends the process at once.
"""

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import time
from collections.abc import Iterator

import uvicorn

from services.gateway.app import build_app, build_gateway, running
from services.gateway.context import Gateway
from services.gateway.settings import GatewaySettings
from shared.errors import ErrorCode, RequestError, SettingsError

LOG = logging.getLogger(__name__)
BACKLOG = 2048
LAST_BYTES_SECONDS = 2.0
"""How long the last events may take to reach their readers."""


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """Take the address before anything else starts.

    Raises:
        SettingsError: it is taken, or no address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise SettingsError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; "
            "choose another --port (0 picks a free one) or stop what uses it"
        ) from None
    listener.setblocking(False)
    return listener


async def serve(settings: GatewaySettings) -> int:
    """Serve until a signal; returns the exit code.

    Raises:
        SettingsError: the gateway cannot run with these settings.
    """
    listener = listen(settings.host, settings.port)
    try:
        host, port = listener.getsockname()[:2]
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        gateway = build_gateway(settings, url=url)
        _say_who_may_come(gateway)
        # What start-up made is never garbage: looking through it would stop the streams.
        gc.collect()
        gc.freeze()
        LOG.info("listening on %s", url, extra={"gateway_id": gateway.presence.status.id})
        return await _serve(gateway, listener)
    finally:
        listener.close()


def _say_who_may_come(gateway: Gateway) -> None:
    if not gateway.api_keys.required:
        LOG.warning("no API key file is set: the server is open to everybody who can reach it")
    if gateway.settings.test_faults:
        LOG.warning("--test-faults is on: requests may ask for faults")


async def _serve(gateway: Gateway, listener: socket.socket) -> int:
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # its news are told here already
    config = uvicorn.Config(
        build_app(gateway),
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=2,
        http="httptools",
        ws="none",
    )
    server = _Server(config)
    stop, at_once = asyncio.Event(), asyncio.Event()
    with _signals(stop, at_once):
        async with running(gateway) as work:
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait((work, serving, stopping), return_when=asyncio.FIRST_COMPLETED)
            fault = work.exception() if work.done() else None
            if fault is None:
                await _drain(gateway, at_once)
            stopping.cancel()
            server.force_exit = at_once.is_set()
            server.should_exit = True
            await serving
    if fault is not None:
        raise fault
    return 1 if at_once.is_set() else 0


@contextlib.contextmanager
def _signals(stop: asyncio.Event, at_once: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()

    def handle() -> None:
        (at_once if stop.is_set() else stop).set()

    handled = (signal.SIGTERM, signal.SIGINT)
    for number in handled:
        loop.add_signal_handler(number, handle)
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)


async def _drain(gateway: Gateway, at_once: asyncio.Event) -> None:
    """Let open streams end within the grace time; the rest get an error event."""
    gateway.draining = True
    LOG.info("stopping: %d open requests have %g s", len(gateway.hub.streams), gateway.settings.grace)
    await _wait_for_streams(gateway, at_once, gateway.settings.grace)
    left = gateway.hub.streams
    if left and not at_once.is_set():
        LOG.warning("%d requests did not end in time", len(left))
        error = RequestError(ErrorCode.NOT_READY, "the server stopped before this answer was complete")
        for stream in left:
            await stream.abandon(error, end=True)
        await _wait_for_streams(gateway, at_once, LAST_BYTES_SECONDS)


async def _wait_for_streams(gateway: Gateway, at_once: asyncio.Event, seconds: float) -> None:
    end = time.monotonic() + seconds
    while gateway.hub.streams and not at_once.is_set() and time.monotonic() < end:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await at_once.wait()
