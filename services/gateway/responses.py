"""Streams and whole answers over ASGI, both watching for a client that leaves.

Written as plain ASGI responses: a framework's streaming response notices a leaving client only
when it next sends, which for a queued request may be never.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from services.gateway.errors import error_body, error_response
from services.gateway.hub import Hub
from services.gateway.rendering import Renderer, to_json
from services.gateway.stream import GroupStream
from services.gateway.tasks import cancel_all

KEEP_ALIVE_SECONDS = 8.0
IDLE_CHECK_SECONDS = 60.0
SSE_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class StreamedAnswer(Response):
    """Server-sent events: one per piece, then usage or the error, then `[DONE]`."""

    def __init__(
        self, hub: Hub, stream: GroupStream, renderer: Renderer, *, first: int = 0, cancels: bool = True
    ) -> None:
        """Args:
        first: number of the first event to send.
        cancels: whether this reader's leaving may end the request.
        """
        super().__init__()
        self._hub = hub
        self._stream = stream
        self._renderer = renderer
        self._first = first
        self._cancels = cancels

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def answer() -> None:
            await send({"type": "http.response.start", "status": 200, "headers": SSE_HEADERS})
            async for part in self._parts():
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

        await _until_left(self._hub, self._stream, receive, answer, cancels=self._cancels)

    async def _parts(self) -> AsyncIterator[bytes]:
        stream, cursor = self._stream, self._first
        pieces = stream.answer.pieces
        while True:
            while cursor < len(pieces):
                yield self._event(cursor, to_json(self._renderer.chunk(pieces[cursor])))
                cursor += 1
            if stream.done:
                break
            if not await stream.changed(KEEP_ALIVE_SECONDS):
                yield b": keep-alive\n\n"
        last = self._last()
        if last is not None and cursor <= len(pieces):
            yield self._event(len(pieces), last)
        yield b"data: [DONE]\n\n"

    def _last(self) -> str | None:
        """The event behind the pieces: the error, or the usage where it was asked for."""
        if self._stream.failure:
            return to_json(error_body(self._stream.failure))
        if self._stream.requests[0].rendering.include_usage:
            return to_json(self._renderer.usage_chunk())
        return None

    def _event(self, number: int, data: str) -> bytes:
        return f"id: {self._stream.group}:{number}\ndata: {data}\n\n".encode()


class WholeAnswer(Response):
    """One JSON object when everything is there, or the error with its own status."""

    def __init__(self, hub: Hub, stream: GroupStream, renderer: Renderer) -> None:
        super().__init__()
        self._hub = hub
        self._stream = stream
        self._renderer = renderer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def answer() -> None:
            while not self._stream.done:
                await self._stream.changed(IDLE_CHECK_SECONDS)
            if self._stream.failure:
                await error_response(self._stream.failure)(scope, receive, send)
                return
            body = to_json(self._renderer.whole()).encode()
            headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})

        await _until_left(self._hub, self._stream, receive, answer, cancels=True)


async def _until_left(
    hub: Hub,
    stream: GroupStream,
    receive: Receive,
    answer: Callable[[], Coroutine[Any, Any, None]],
    *,
    cancels: bool,
) -> None:
    """Run `answer` until it ends or the client leaves, whichever is first."""
    hub.enter(stream)
    work = asyncio.create_task(answer())
    left = asyncio.create_task(_left(receive))
    try:
        await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            _raise_unless_gone(work)
    finally:
        hub.leave(stream, cancels=cancels)
        await cancel_all((work, left))


def _raise_unless_gone(work: "asyncio.Task[None]") -> None:
    """A connection that broke while sending is a client that left, and no fault of ours."""
    error = work.exception()
    if error is not None and not isinstance(error, OSError):
        raise error


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
