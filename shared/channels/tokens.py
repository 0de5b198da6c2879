"""Token and state events from the pool to one gateway. At most once.

One subscription connection per process; events fan out to local listeners by sequence id. What
pub/sub loses is found again in the token log: every event carries its index, and after each new
subscription `on_subscribed` is called, because anything may have been missed before it.
"""

import asyncio
import logging
from collections.abc import Callable

import redis.asyncio
from redis.exceptions import RedisError

from shared.errors import DecodeError
from shared.keys import Keys
from shared.observability.logging import RateLimit
from shared.protocol.token import Event, EventMessage
from shared.protocol.wire import decode

LOG = logging.getLogger(__name__)
PING_SECONDS = 5.0
"""A link that stays silent this long is asked for a sign of life; twice as long ends it."""


class EventSubscription:
    """Keeps one gateway subscribed to its channel, whatever happens to the connection."""

    def __init__(
        self,
        client: "redis.asyncio.Redis",
        keys: Keys,
        gateway_id: Callable[[], str],
        *,
        on_event: Callable[[Event], None],
        on_subscribed: Callable[[], None],
    ) -> None:
        self._client = client
        self._keys = keys
        self._gateway_id = gateway_id
        self._on_event = on_event
        self._on_subscribed = on_subscribed
        self._limit = RateLimit()
        self.subscribed = asyncio.Event()
        """Set while Redis has confirmed the subscription: no submit goes out before."""
        self.unreadable = 0

    async def run(self) -> None:
        """Subscribe, read, and subscribe again after every failure, for ever."""
        pause = 0.05
        while True:
            try:
                await self._read_until_broken()
                pause = 0.05
            except (RedisError, OSError, TimeoutError) as error:
                if self._limit.ready("lost"):
                    LOG.warning("event subscription lost: %s; subscribing again", error)
            finally:
                self.subscribed.clear()
            await asyncio.sleep(pause)
            pause = min(2 * pause, 1.0)

    async def _read_until_broken(self) -> None:
        channel = self._keys.events(self._gateway_id())
        async with self._client.pubsub() as pubsub:
            await pubsub.subscribe(channel)
            silent = 0.0
            while channel == self._keys.events(self._gateway_id()):
                message = await pubsub.get_message(timeout=PING_SECONDS)
                if message is None:
                    if silent >= PING_SECONDS:
                        raise TimeoutError("no answer on the subscription's connection")
                    silent += PING_SECONDS
                    await pubsub.ping()
                    continue
                silent = 0.0
                if message["type"] == "subscribe":
                    self.subscribed.set()
                    self._on_subscribed()
                elif message["type"] == "message":
                    self._deliver(message["data"])

    def _deliver(self, payload: bytes) -> None:
        try:
            events = decode(EventMessage, payload).events
        except DecodeError as error:
            self.unreadable += 1
            if self._limit.ready("unreadable"):
                LOG.warning("unreadable event dropped: %s", error)
            return
        for event in events:
            self._on_event(event)
