"""The records and token logs of one group, as this gateway has read and shown them.

Where Redis has gone back in time (a restart that lost its last writes), the pool is given back
what clients have already been shown: it is never generated again. A flushed pool is another
matter: it was emptied on purpose, and its requests end.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from services.gateway.metrics import GatewayMetrics
from services.gateway.vocabulary import Vocabulary
from shared.channels import request_pool
from shared.channels.calls import AsyncPool
from shared.channels.request_pool import Attached
from shared.errors import ErrorCode, RequestError
from shared.keys import Keys
from shared.protocol.request import GenerationRequest
from shared.protocol.token import TokenEntry, TokenEvent
from shared.protocol.wire import decode

LOG = logging.getLogger(__name__)


@dataclass
class ServerIdentity:
    """Which start of Redis this gateway last spoke to."""

    run_id: str = ""


@dataclass(frozen=True, slots=True)
class Follower:
    """What every stream of a gateway shares."""

    pool: AsyncPool
    keys: Keys
    gateway_id: str
    vocabulary: Vocabulary
    metrics: GatewayMetrics
    stall_timeout: float
    record_ttl: float = 600.0
    server: ServerIdentity = field(default_factory=ServerIdentity)


class GroupLog:
    """Reads one group's logs on from what it has; restores them where the pool has lost them."""

    def __init__(
        self, shared: Follower, requests: Sequence[GenerationRequest], prompts: Sequence[Sequence[int]]
    ) -> None:
        self._shared = shared
        self._requests = tuple(requests)
        self._prompts = prompts
        self._run_id = shared.server.run_id
        self.shown: list[list[str]] = [[] for _ in requests]
        """Encoded log entries that were read, by choice."""
        self.order_shift = 0
        """Entries that the group's `order` lacks since a restore."""

    async def read(self) -> dict[int, Attached]:
        """Every choice's record, and its log behind what was read.

        Raises:
            RequestError: the group is gone from the pool, or the pool contradicts what was shown.
            redis.RedisError, OSError: no answer.
            DecodeError: an unreadable record.
        """
        found: dict[int, Attached] = {}
        for number in range(len(self._requests)):
            attached = await self._attach(number)
            if attached is None or self._lost_tail(number, attached):
                await self._restore(number, gone=attached is None)
                attached = await self._attach(number)
            if attached is None:
                raise _gone()
            found[number] = attached
        return found

    def check_repeat(self, number: int, event: TokenEvent) -> None:
        """A token that is heard again must be the one that was shown.

        Raises:
            RequestError: it is another one; two texts are never spliced.
        """
        if decode(TokenEntry, event.entry).token != decode(TokenEntry, self.shown[number][event.index]).token:
            raise _contradiction()

    async def _attach(self, number: int) -> Attached | None:
        request = self._requests[number]
        return await self._shared.pool.run(
            request_pool.attach(
                self._shared.keys,
                sequence_id=request.id,
                group=request.group,
                gateway_id=self._shared.gateway_id,
                index=len(self.shown[number]),
            )
        )

    def _lost_tail(self, number: int, attached: Attached) -> bool:
        record = attached.record
        return not record.state.ended and record.n_tokens < len(self.shown[number])

    async def _restore(self, number: int, *, gone: bool) -> None:
        if gone and not await self._was_restarted():
            raise _gone()
        request = self._requests[number]
        call = request_pool.restore(
            self._shared.keys,
            request=request,
            prompt=self._prompts[request.prompt_index],
            shown=self.shown[number],
            gateway_id=self._shared.gateway_id,
            record_ttl=self._shared.record_ttl,
        )
        outcome = await self._shared.pool.run(call)
        LOG.warning("the pool went back in time: %s", outcome, extra={"request_id": request.id})
        if outcome == "contradiction":
            raise _contradiction()
        if len(self._requests) > 1:
            order: Any = await self._shared.pool.client.llen(self._shared.keys.order(request.group))
            self.order_shift = int(order) - sum(map(len, self.shown))

    async def _was_restarted(self) -> bool:
        info: Any = await self._shared.pool.client.info("server")
        self._shared.server.run_id = str(info["run_id"])
        return self._shared.server.run_id != self._run_id


def _gone() -> RequestError:
    return RequestError(ErrorCode.ENGINE_FAILED, "the request's record is gone from the pool: send it again")


def _contradiction() -> RequestError:
    return RequestError(
        ErrorCode.ENGINE_FAILED, "the pool was restored with another text than was shown: send it again"
    )
