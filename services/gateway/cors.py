"""Cross-origin access for browsers: off unless origins are named."""

from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

REQUEST_HEADERS = ("Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID", "X-Client-Request-Id")
ANSWER_HEADERS = ("X-Request-Id", "X-Client-Request-Id", "Retry-After")


def with_cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """The application as pages of these origins may use it; unchanged without any.

    Preflight requests carry no key and are answered here, before anybody asks for one.
    """
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=list(origins),
        allow_methods=("GET", "POST", "PATCH", "DELETE"),
        allow_headers=REQUEST_HEADERS,
        expose_headers=ANSWER_HEADERS,
    )
