"""The inbox and the batch streams: in order, over both versions of the Redis protocol."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from shared.channels import batches, inbox
from shared.errors import NotLeader
from shared.protocol.inbox import Ended
from shared.protocol.wire import encode
from tests.shared.pool import Bench, make_request


@pytest.fixture(params=[2, 3])
def reader(redis_url: str, request: pytest.FixtureRequest) -> Iterator["redis.Redis"]:
    """A client that speaks RESP2 or RESP3."""
    with redis.Redis.from_url(redis_url, protocol=request.param) as client:
        yield client


def put(bench: Bench, payload: bytes) -> str:
    entry_id = bench.client.xadd(bench.keys.inbox, {"m": payload})
    assert isinstance(entry_id, bytes)
    return entry_id.decode()


def test_events_come_in_order_and_once(bench: Bench, reader: "redis.Redis") -> None:
    start = inbox.last_entry(reader, bench.keys)
    last = [put(bench, encode(Ended(id=name))) for name in "abc"][-1]
    after, events = inbox.read(reader, bench.keys, after=start, block=1)
    assert (after, events) == (last, [Ended(id=name) for name in "abc"])
    assert inbox.read(reader, bench.keys, after=after, block=0.01) == (after, [])


def test_an_inbox_that_never_was_begins_at_zero(redis_client: "redis.Redis", reader: "redis.Redis") -> None:
    from shared.keys import Keys

    assert inbox.last_entry(reader, Keys("nobody")) == "0-0"


def test_what_cannot_be_read_goes_to_the_dead_letters_and_is_counted(
    bench: Bench, reader: "redis.Redis"
) -> None:
    start = inbox.last_entry(reader, bench.keys)
    put(bench, b"\xff")
    last = put(bench, encode(Ended(id="a")))
    assert inbox.read(reader, bench.keys, after=start, block=1) == (last, [Ended(id="a")])
    letters: Any = bench.client.xrange(bench.keys.dead_letters)
    (_, letter), *rest = letters
    assert not rest
    assert (letter[b"payload"], letter[b"channel"]) == (b"\xff", b"inbox")
    assert bench.total("dead_letters") == 1


def test_only_the_leader_trims_and_only_what_was_read(bench: Bench) -> None:
    put(bench, encode(Ended(id="a")))
    kept = put(bench, encode(Ended(id="b")))
    with pytest.raises(NotLeader):
        bench.run(inbox.trim(bench.keys, fence="0:old", before=kept))
    assert bench.client.xlen(bench.keys.inbox) > 1
    bench.run(inbox.trim(bench.keys, fence=bench.fence, before=kept))
    assert bench.inbox() == [Ended(id="b")]


def test_an_engine_reads_one_descriptor_after_the_last_it_ran(bench: Bench, reader: "redis.Redis") -> None:
    request = make_request("a")
    bench.submit(request)
    bench.step(request)
    bench.dispatch(request, index=1)

    def receive(after: int) -> int | None:
        found = batches.receive(reader, bench.keys, engine_id=bench.engine, after=after, block=0.01)
        return None if found is None else found.iteration

    assert [receive(0), receive(1), receive(2)] == [1, 2, None]


def test_an_unreadable_descriptor_is_buried_and_the_next_is_read(bench: Bench, reader: "redis.Redis") -> None:
    request = make_request("a")
    bench.submit(request)
    bench.client.xadd(bench.keys.batches(bench.engine), {"m": b"{"}, id="1-0")
    bench.dispatch(request, number=2)
    found = batches.receive(reader, bench.keys, engine_id=bench.engine, after=0, block=1)
    assert found is not None
    assert found.iteration == 2
    assert bench.total("dead_letters") == 1
