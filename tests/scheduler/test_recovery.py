"""Drains, losses, time limits and unreadable records: what the scheduler repairs in a real pool."""

import pytest
import redis

from services.scheduler.dispatch import Dispatcher
from services.scheduler.selection import select_request_level
from shared.channels import presence
from shared.keys import Keys
from shared.protocol.batch import ContinuingEntry, FirstEntry
from shared.protocol.token import State
from tests.scheduler.pool import World


@pytest.fixture
def world(redis_client: "redis.Redis", keys: Keys) -> World:
    return World(redis_client, keys)


def tick_now(world: World) -> None:
    world.loop._next_tick = 0.0
    world.turn()


def test_the_sequences_of_a_draining_engine_are_completed_on_another(world: World) -> None:
    draining = world.join("e0")
    request = world.submit("A", generated=4)
    world.turn(2)
    other = world.join("e1")
    status = draining.status.model_copy(update={"draining": True})
    world.run(presence.drain_engine(world.keys, status))
    world.turn(5)
    assert world.record(request).state is State.COMPLETED
    assert world.log(request) == [100, 101, 102, 103], "none missing and none twice"
    assert not draining.kv, "the draining engine was told to drop it"
    assert isinstance(other.seen[0].entries[0], FirstEntry)


def test_an_engine_that_goes_between_decision_and_dispatch_is_declared_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = world.join("e0")
    world.turn()
    request = world.submit("A")
    send = Dispatcher.send

    def too_late(self: Dispatcher, *arguments: object) -> tuple[str, ...]:
        world.client.delete(world.keys.engine(gone.id), world.keys.batches(gone.id))
        monkeypatch.setattr(Dispatcher, "send", send)
        return send(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Dispatcher, "send", too_late)
    world.loop.run_iteration()
    world.engines.remove(gone)
    world.loop.run_iteration()
    assert gone.id not in world.state.engines
    world.join("e1")
    world.turn(4)
    assert world.record(request).state is State.COMPLETED


def test_a_sequence_that_waits_too_long_is_failed_in_the_pool(world: World) -> None:
    world.state._queue_timeout = 0.001
    request = world.submit("A")
    world.turn()
    tick_now(world)
    record = world.record(request)
    assert (record.state, record.code) == (State.FAILED, "queue_timeout")
    assert world.state.n_waiting == 0


def test_a_request_over_its_timeout_is_failed_and_its_engine_drops_it(world: World) -> None:
    engine = world.join("e0")
    request = world.submit("A", generated=50, timeout_seconds=0.001)
    world.turn()
    tick_now(world)
    world.turn()
    record = world.record(request)
    assert (record.state, record.code) == (State.FAILED, "request_timeout")
    assert not engine.kv


@pytest.mark.parametrize(
    ("field", "value"),
    [("body", b"{}"), ("body", b"\xff"), ("state", b"asleep"), ("arrival", b"soon"), ("attempt", None)],
)
def test_a_new_leader_leaves_an_unreadable_record_aside_and_serves_the_others(
    world: World, field: str, value: bytes | None
) -> None:
    world.join("e0")
    world.submit("A")
    other = world.submit("B")
    if value is None:
        world.client.hdel(world.keys.request("A"), field)
    else:
        world.client.hset(world.keys.request("A"), field, value)
    world.take_over()
    world.turn(5)
    assert world.record(other).state is State.COMPLETED


def test_a_new_leader_forgets_open_sequences_whose_record_is_gone(world: World) -> None:
    world.submit("A")
    world.client.delete(world.keys.request("A"))
    world.take_over()
    assert not world.state.sequences
    assert world.client.zcard(world.keys.open) == 0


def test_a_new_leader_runs_what_waited_in_its_order_of_arrival(world: World) -> None:
    engine = world.join("e0")
    for name in "CAB":
        world.submit(name)
    world.take_over()
    world.turn(2)
    assert [entry.id for entry in engine.seen[0].entries] == ["C", "A", "B"]


def test_a_new_leader_gives_no_more_slots_than_its_predecessor_left(world: World) -> None:
    engine = world.join("e0", n_slots=12)
    first, second = world.submit("A", n_prompt=3, generated=5), world.submit("B", n_prompt=3, generated=5)
    world.turn(2)
    world.take_over()
    world.turn(12)
    assert [world.record(request).state for request in (first, second)] == [State.COMPLETED] * 2
    assert all(len(descriptor.entries) <= 1 for descriptor in engine.seen), "8 + 8 slots do not fit into 12"
    assert max(descriptor.n_reserved for descriptor in engine.seen) == 8


def test_a_request_level_batch_is_asked_to_run_to_its_end(world: World) -> None:
    engine = world.join("e0")
    world.state._select = select_request_level
    world.loop._dispatcher = Dispatcher(world.pool, world.keys, fence=world.fence, until_done=True)
    world.submit("A", generated=5)
    world.turn()
    world.submit("B", generated=5)
    world.turn()
    assert all(descriptor.until_done for descriptor in engine.seen)
    assert [[entry.id for entry in descriptor.entries] for descriptor in engine.seen] == [["A"], ["A"]]
    assert isinstance(engine.seen[1].entries[0], ContinuingEntry)


def test_a_record_that_becomes_unreadable_while_it_waits_stops_nobody_else(world: World) -> None:
    world.join("e0")
    world.submit("A")
    other = world.submit("B")
    world.client.hset(world.keys.request("A"), "state", "asleep")
    world.turn(5)
    assert world.record(other).state is State.COMPLETED
    assert world.client.xlen(world.keys.dead_letters) == 1
