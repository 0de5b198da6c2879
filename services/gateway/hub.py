"""The streams of this process: who follows which group, and what happens when readers leave.

One stream per group, however many readers; one subscription for all of them.
"""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any

from redis.exceptions import RedisError

from services.gateway.group_log import Follower
from services.gateway.stream import GroupStream
from services.gateway.tasks import cancel_all
from shared.channels import request_pool
from shared.errors import ErrorCode, RequestError
from shared.protocol.request import GenerationRequest
from shared.protocol.token import Event

LOG = logging.getLogger(__name__)
DETACH_PATIENCE = 10.0


class Hub:
    """Finds the stream that an event or a reader belongs to."""

    def __init__(self, shared: Follower) -> None:
        self.shared = shared
        self._by_group: dict[str, GroupStream] = {}
        self._by_sequence: dict[str, GroupStream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._resuming: dict[str, asyncio.TimerHandle] = {}

    @property
    def streams(self) -> Sequence[GroupStream]:
        """Every stream that is followed now."""
        return tuple(self._by_group.values())

    def deliver(self, event: Event) -> None:
        """Give an event to its stream; one that nobody here follows is dropped."""
        stream = self._by_sequence.get(event.id)
        if stream is not None:
            stream.hear(event)

    def resubscribed(self) -> None:
        """The subscription is new: every stream reads its log."""
        for stream in self.streams:
            stream.resubscribed()

    def find(self, group: str) -> GroupStream | None:
        """The stream of a group, if it is followed here."""
        return self._by_group.get(group)

    def open(
        self,
        requests: Sequence[GenerationRequest],
        prompts: Sequence[Sequence[int]],
        *,
        age: float = 0.0,
        listening: bool = True,
    ) -> GroupStream:
        """Start following a group; arguments as GroupStream's. Begin before it is submitted, so
        that no event is missed, and call `start` or `drop`."""
        stream = GroupStream(self.shared, requests, prompts, age=age, listening=listening)
        self._by_group[stream.group] = stream
        for request in requests:
            self._by_sequence[request.id] = stream
        return stream

    def start(self, stream: GroupStream) -> None:
        """Supervise the stream until it is done, then forget it."""
        self.spawn(self._follow(stream))

    async def _follow(self, stream: GroupStream) -> None:
        try:
            await stream.supervise()
        finally:
            self.drop(stream)

    def drop(self, stream: GroupStream) -> None:
        """Forget a stream. Its readers keep it alive until they have read it."""
        if self._by_group.get(stream.group) is stream:
            del self._by_group[stream.group]
            for request in stream.requests:
                self._by_sequence.pop(request.id, None)

    # -- readers

    def enter(self, stream: GroupStream) -> None:
        """A reader has come."""
        stream.readers += 1
        timer = self._resuming.pop(stream.group, None)
        if timer is not None:
            timer.cancel()

    def leave(self, stream: GroupStream, *, cancels: bool = True) -> None:
        """A reader has left; the last one takes the request with it, as `on_disconnect` says.

        One that `cancels` nothing has only looked, unless it resumed what its maker left.
        """
        stream.readers -= 1
        stream.left = stream.left or cancels
        if not stream.left:
            return
        request = stream.requests[0]
        if stream.readers > 0 or stream.done or request.on_disconnect == "finish":
            return
        if request.resume_seconds > 0:
            self._resuming[stream.group] = asyncio.get_running_loop().call_later(
                request.resume_seconds, self._give_up, stream
            )
        else:
            self._give_up(stream)

    def _give_up(self, stream: GroupStream) -> None:
        self._resuming.pop(stream.group, None)
        if stream.readers == 0 and not stream.done:
            self.spawn(self._cancel_unread(stream))

    async def _cancel_unread(self, stream: GroupStream) -> None:
        """Cancel, unless another gateway still has a reader."""
        others = 0
        gone = RequestError(ErrorCode.REQUEST_CANCELLED, "the client left")
        for request in stream.requests:
            call = request_pool.detach(
                self.shared.keys, sequence_id=request.id, gateway_id=self.shared.gateway_id
            )
            try:
                others = max(others, await self.shared.pool.run(call, patience=DETACH_PATIENCE))
            except (RedisError, OSError) as error:
                LOG.warning("cannot detach: %s", error, extra={"request_id": request.id})
                others = 1  # nobody can say that there is no other reader
        if stream.readers:  # one came back meanwhile: listen again and read what was missed
            stream.resubscribed()
            return
        await stream.abandon(gone, end=others == 0)

    # -- background work

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run background work that outlives the HTTP call that began it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Stop all background work."""
        for timer in self._resuming.values():
            timer.cancel()
        await cancel_all(self._tasks)
