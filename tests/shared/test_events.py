"""The event subscription: confirmed, multiplexed, and back after every loss."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import redis

from shared.channels.calls import connect_async
from shared.channels.tokens import EventSubscription
from shared.keys import Keys
from shared.protocol.token import Event, EventMessage, TokenEvent
from shared.protocol.wire import encode

EVENT = TokenEvent(id="a", index=0, entry="{}")
CHANNEL_ID = "gateway-0.aa"


@asynccontextmanager
async def subscribed(
    url: str, keys: Keys
) -> AsyncIterator[tuple[EventSubscription, "asyncio.Queue[Event]", list[str]]]:
    events: asyncio.Queue[Event] = asyncio.Queue()
    subscriptions: list[str] = []
    client = connect_async(url)
    subscription = EventSubscription(
        client,
        keys,
        lambda: CHANNEL_ID,
        on_event=events.put_nowait,
        on_subscribed=lambda: subscriptions.append("again"),
    )
    task = asyncio.create_task(subscription.run())
    try:
        await asyncio.wait_for(subscription.subscribed.wait(), 5)
        yield subscription, events, subscriptions
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await client.aclose()


def test_events_reach_the_process_once_the_subscription_is_confirmed(
    redis_client: "redis.Redis", redis_url: str, keys: Keys
) -> None:
    async def test() -> None:
        async with subscribed(redis_url, keys) as (_, events, _again):
            message = EventMessage(events=(EVENT, EVENT))
            assert redis_client.publish(keys.events(CHANNEL_ID), encode(message)) == 1
            assert [await asyncio.wait_for(events.get(), 5) for _ in range(2)] == [EVENT, EVENT]

    asyncio.run(test())


def test_a_killed_connection_is_subscribed_again_and_its_owner_told(
    redis_client: "redis.Redis", redis_url: str, keys: Keys
) -> None:
    async def test() -> None:
        async with subscribed(redis_url, keys) as (subscription, events, again):
            redis_client.client_kill_filter(_type="pubsub")
            while len(again) < 2:
                await asyncio.wait_for(subscription.subscribed.wait(), 5)
                await asyncio.sleep(0.01)
            redis_client.publish(keys.events(CHANNEL_ID), encode(EventMessage(events=(EVENT,))))
            assert await asyncio.wait_for(events.get(), 5) == EVENT

    asyncio.run(test())


def test_what_cannot_be_read_is_counted_and_dropped(
    redis_client: "redis.Redis", redis_url: str, keys: Keys
) -> None:
    async def test() -> None:
        async with subscribed(redis_url, keys) as (subscription, events, _again):
            redis_client.publish(keys.events(CHANNEL_ID), b"\xff")
            redis_client.publish(keys.events(CHANNEL_ID), encode(EventMessage(events=(EVENT,))))
            assert await asyncio.wait_for(events.get(), 5) == EVENT
            assert subscription.unreadable == 1

    asyncio.run(test())
