"""Around every request: its id, the client's own id, the key, and the count of refusals.

Plain ASGI, so that nothing stands between a response and the news that the client has left.
"""

import logging
import re
import secrets
from collections.abc import MutableMapping
from typing import Any

from redis.exceptions import RedisError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.gateway.auth import OPEN_PATHS, Identity
from services.gateway.context import Gateway
from services.gateway.errors import error_response
from services.gateway.intake import ID_PREFIX
from shared.errors import RequestError

LOG = logging.getLogger(__name__)
GENERATION_PATHS = {
    "/v1/completions": ID_PREFIX["completions"],
    "/v1/chat/completions": ID_PREFIX["chat"],
}
MAX_CLIENT_ID = 128
_STRANGE = re.compile(rb"[^A-Za-z0-9._-]")
_CLIENT_ID_HEADERS = (b"x-client-request-id", b"x-request-id")


class RequestFrame:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        self._app = app
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state: MutableMapping[str, Any] = scope.setdefault("state", {})
        state["request_id"] = GENERATION_PATHS.get(scope["path"], "req-") + secrets.token_hex(16)
        state["accepted"] = False
        headers = dict(scope["headers"])
        client_id = clean_client_id(headers)

        async def framed(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(b"x-request-id", state["request_id"].encode())]
                if client_id:
                    extra.append((b"x-client-request-id", client_id))
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
                self._count_refusal(scope, message["status"])
            await send(message)

        try:
            identity = self._identify(scope["path"], headers)
        except RequestError as error:
            await error_response(error)(scope, receive, framed)
            return
        state["owner"], state["admin"] = identity.owner, identity.admin
        await self._app(scope, receive, framed)

    def _identify(self, path: str, headers: dict[bytes, bytes]) -> Identity:
        if path in OPEN_PATHS:
            return Identity()
        given = headers.get(b"authorization")
        return self._gateway.api_keys.identify(None if given is None else given.decode("latin-1"))

    def _count_refusal(self, scope: Scope, status: int) -> None:
        refused = status >= 400 and not scope["state"]["accepted"]
        if refused and scope["path"] in GENERATION_PATHS and scope["method"] == "POST":
            self._gateway.hub.spawn(self._count())

    async def _count(self) -> None:
        try:
            await self._gateway.client.hincrby(self._gateway.keys.totals, "requests:rejected", 1)
        except (RedisError, OSError) as error:
            LOG.warning("cannot count a refusal: %s", error)


def clean_client_id(headers: dict[bytes, bytes]) -> bytes:
    """The client's own id from `X-Client-Request-Id`, else `X-Request-Id`: for correlation only.

    Letters, digits, dot, underscore and dash stay, at most 128 of them; nothing else does.
    """
    for name in _CLIENT_ID_HEADERS:
        value = _STRANGE.sub(b"", headers.get(name, b"")[: 8 * MAX_CLIENT_ID])[:MAX_CLIENT_ID]
        if value:
            return value
    return b""
