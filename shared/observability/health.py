"""`/healthz`, `/readyz` and `/metrics` for services that speak no HTTP otherwise.

A daemon thread over the standard library's server, so that a probe is answered while the
service's own loop computes.
"""

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

Missing = Callable[[], str]
"""What is missing for readiness; empty when ready."""


class HealthServer:
    """Serves one process's health and metrics until closed."""

    def __init__(self, host: str, port: int, *, registry: CollectorRegistry, missing: Missing) -> None:
        self._server = ThreadingHTTPServer((host, port), _handler(registry, missing))
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = Thread(target=self._server.serve_forever, name="health", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(registry: CollectorRegistry, missing: Missing) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.split("?")[0]
            if path in ("/healthz", "/health"):
                self._answer(200, "ok\n")
            elif path == "/readyz":
                reason = missing()
                self._answer(503 if reason else 200, (reason or "ready") + "\n")
            elif path == "/metrics":
                self._answer(200, generate_latest(registry).decode(), CONTENT_TYPE_LATEST)
            else:
                self._answer(404, "no such path\n")

        def _answer(self, status: int, body: str, kind: str = "text/plain; charset=utf-8") -> None:
            payload = body.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, format: str, *args: object) -> None:
            """Probes are not news."""

    return Handler
