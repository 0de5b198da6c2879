"""The loop, dispatch and recovery on a real pool with scripted engines."""

from typing import Any

import pytest
import redis

from shared.channels import inbox, lease, presence, runtime_settings
from shared.errors import NotLeader, PresenceLost
from shared.keys import Keys
from shared.protocol.batch import ContinuingEntry, FirstEntry
from shared.protocol.settings import RuntimeSettings
from shared.protocol.token import State
from tests.scheduler.pool import World


@pytest.fixture
def world(redis_client: "redis.Redis", keys: Keys) -> World:
    return World(redis_client, keys)


def test_a_submitted_sequence_runs_token_by_token_until_it_is_completed(world: World) -> None:
    engine = world.join("e0")
    request = world.submit("A")
    world.turn(3)
    assert world.record(request).state is State.COMPLETED
    assert world.log(request) == [100, 101, 102]
    kinds = [type(descriptor.entries[0]) for descriptor in engine.seen]
    assert kinds == [FirstEntry, ContinuingEntry, ContinuingEntry], "the prompt travels once"


def test_a_late_arrival_joins_the_next_iteration(world: World) -> None:
    engine = world.join("e0")
    world.submit("A", generated=5)
    world.turn()
    world.submit("B", generated=5)
    world.turn()
    assert [e.id for e in engine.seen[-1].entries] == ["A", "B"]


def test_after_a_cancel_the_release_travels_first_or_alone(world: World) -> None:
    engine = world.join("e0")
    request = world.submit("A", generated=9)
    world.turn()
    world.end(request)
    world.turn()
    assert (engine.seen[-1].entries, engine.seen[-1].releases) == ((), ("A",))
    assert not engine.kv
    assert engine.seen[-1].n_reserved == 0


def test_a_member_that_the_pool_refuses_does_not_hold_up_the_others(world: World) -> None:
    engine = world.join("e0")
    first, second = world.submit("A"), world.submit("B")
    # The end is in the record before the scheduler has heard of it.
    world.client.hset(world.keys.request("A"), "state", "cancelled")
    world.turn(4)
    assert all(entry.id == "B" for descriptor in engine.seen for entry in descriptor.entries)
    assert world.record(second).state is State.COMPLETED
    assert world.log(first) == []


def test_a_sequence_whose_prompt_is_lost_fails_alone(world: World) -> None:
    world.join("e0")
    lost, other = world.submit("A"), world.submit("B")
    world.client.delete(world.keys.prompt("A", 0))
    world.turn(4)
    assert (world.record(lost).state, world.record(lost).code) == (State.FAILED, "internal_error")
    assert world.record(other).state is State.COMPLETED


def test_what_no_engine_can_hold_fails_with_a_clear_message(world: World) -> None:
    world.join("e0", n_slots=10)
    world.turn()
    request = world.submit("A", n_prompt=8, generated=8)
    world.turn()
    record = world.record(request)
    assert (record.state, record.code) == (State.FAILED, "never_fits")
    assert "16" in record.message


def test_an_unreadable_event_is_buried_and_the_loop_goes_on(world: World) -> None:
    world.join("e0")
    world.client.xadd(world.keys.inbox, {"m": b"\xff not a message"})
    world.client.xadd(
        world.keys.inbox, {"m": b'{"version":1,"kind":"submit","id":"X","arrival":1,"request":"no"}'}
    )
    request = world.submit("A")
    world.turn(3)
    assert world.record(request).state is State.COMPLETED
    assert world.client.xlen(world.keys.dead_letters) == 2


def test_the_inbox_is_trimmed_behind_what_was_read(world: World) -> None:
    for _ in range(20):
        world.poke()
    world.loop.run_iteration()
    left: Any = world.client.xlen(world.keys.inbox)
    assert left <= 1


def test_a_scheduler_that_was_fenced_out_changes_nothing(world: World) -> None:
    engine = world.join("e0")
    world.loop.run_iteration()
    asleep, fence = world.loop, world.fence
    world.run(lease.resign(world.keys, fence=fence))
    world.run(lease.acquire(world.keys, token="other"))
    request = world.submit("A")
    with pytest.raises(NotLeader):
        asleep.run_iteration()
    assert engine.step() is None
    assert world.record(request).state is State.WAITING


def test_a_new_leader_adopts_what_engines_hold_and_recomputes_nothing(world: World) -> None:
    engine = world.join("e0")
    request = world.submit("A", generated=4)
    world.turn(2)
    n_before = len(engine.seen)
    world.take_over()
    world.turn(4)
    after = [entry for descriptor in engine.seen[n_before:] for entry in descriptor.entries]
    assert after
    assert all(isinstance(entry, ContinuingEntry) for entry in after)
    record = world.record(request)
    assert (record.state, record.attempt) == (State.COMPLETED, 0)
    assert world.log(request) == [100, 101, 102, 103]


def test_a_batch_in_flight_at_the_change_of_leaders_counts_once(world: World) -> None:
    engine = world.join("e0")
    request = world.submit("A", generated=3)
    world.turn()
    world.loop.run_iteration()
    in_flight = engine.step(commit=False)
    assert in_flight is not None
    world.take_over()
    engine.commit(in_flight)
    world.turn(4)
    assert world.record(request).state is State.COMPLETED
    assert world.log(request) == [100, 101, 102]


def test_the_sequences_of_a_lost_engine_are_completed_on_another(world: World) -> None:
    lost = world.join("e0")
    request = world.submit("A", generated=4)
    world.turn(2)
    other = world.join("e1")
    world.engines.remove(lost)
    world.run(presence.leave_engine(world.keys, lost.id))
    world.turn(5)
    assert world.record(request).state is State.COMPLETED
    assert world.log(request) == [100, 101, 102, 103], "none missing and none twice"
    (first,) = [e for d in other.seen for e in d.entries if isinstance(e, FirstEntry)]
    assert (first.attempt, first.tokens, first.n_prompt) == (1, (0, 1, 2, 100, 101), 3)


def test_a_new_leader_takes_sequences_away_from_an_engine_that_has_gone(world: World) -> None:
    gone = world.join("e0")
    request = world.submit("A", generated=3)
    world.turn()
    world.engines.remove(gone)
    world.client.delete(world.keys.engine(gone.id))
    world.take_over()
    world.join("e1")
    world.turn(4)
    assert world.record(request).state is State.COMPLETED
    assert world.log(request) == [100, 101, 102]


def test_nobody_is_declared_lost_before_redis_has_answered_for_a_whole_lease(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = world.join("e0")
    world.turn()
    world.client.delete(world.keys.engine(engine.id))
    monkeypatch.setattr("services.scheduler.loop.TICK_SECONDS", 0.0)
    world.loop._next_tick = 0.0
    world.turn(2)
    assert engine.id in world.state.engines
    monkeypatch.setattr("shared.channels.presence.LEASE_SECONDS", 0.0)
    world.turn(2)
    assert engine.id not in world.state.engines


def test_events_that_were_read_survive_a_redis_that_fails_half_way(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.join("e0", n_slots=10)
    world.turn()
    refused = world.submit("A", n_prompt=8, generated=8)
    request = world.submit("B")
    run, failures = world.pool.run, [redis.ConnectionError("gone")]

    def flaky(call: Any, patience: float | None = None) -> Any:
        if call.script == "end" and failures:
            raise failures.pop()
        return run(call, patience)

    monkeypatch.setattr(world.pool, "run", flaky)
    with pytest.raises(redis.ConnectionError):
        world.loop.run_iteration()
    world.loop.pause()
    world.turn(4)
    assert world.record(refused).code == "never_fits"
    assert world.record(request).state is State.COMPLETED


def test_an_iteration_whose_reply_was_lost_is_sent_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = world.join("e0")
    request = world.submit("A")
    once, lost = world.pool._once, [redis.ConnectionError("the reply was lost")]

    def lossy(call: Any) -> Any:
        reply = once(call)
        if call.script == "dispatch" and lost:
            raise lost.pop()
        return reply

    monkeypatch.setattr(world.pool, "_once", lossy)
    monkeypatch.setattr("shared.channels.calls.FIRST_PAUSE", 0.0)
    world.turn(3)
    assert world.record(request).state is State.COMPLETED
    assert [descriptor.iteration for descriptor in engine.seen] == sorted(
        {descriptor.iteration for descriptor in engine.seen}
    )


def test_a_dispatch_that_is_never_answered_ends_the_lead(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.join("e0")
    world.submit("A")
    once = world.pool._once

    def dead(call: Any) -> Any:
        if call.script == "dispatch":
            raise redis.TimeoutError("no answer")
        return once(call)

    monkeypatch.setattr(world.pool, "_once", dead)
    monkeypatch.setattr("services.scheduler.dispatch.LEASE_SECONDS", 0.0)
    with pytest.raises(NotLeader, match="whole lease"):
        world.turn(2)


def test_everything_is_back_to_idle_at_the_end(world: World) -> None:
    engine = world.join("e0")
    for name in "ABCDEF":
        world.submit(name, generated=2)
    world.turn(8)
    assert not world.state.sequences
    assert world.state.engines[engine.id].n_reserved == 0
    assert world.client.zcard(world.keys.open) == 0
    assert not engine.kv
    assert world.client.xlen(world.keys.batches(engine.id)) <= 2
    assert inbox.last_entry(world.client, world.keys) != "0-0"


def test_a_new_leader_goes_on_with_the_settings_that_were_changed(world: World) -> None:
    world.pool.run(runtime_settings.change(world.keys, RuntimeSettings(max_batch_size=1)))
    world.take_over()
    engine = world.join("e0")
    world.submit("A")
    world.submit("B")
    world.turn()
    assert [entry.id for entry in engine.seen[-1].entries] == ["A"]
    world.pool.run(runtime_settings.change(world.keys, RuntimeSettings(max_batch_size=None)))
    world.turn()
    assert [entry.id for entry in engine.seen[-1].entries] == ["A", "B"]


def test_settings_that_cannot_be_read_are_buried_and_the_start_goes_on(world: World) -> None:
    world.client.hset(world.keys.settings, "max_batch_size", "many")
    world.take_over()
    world.join("e0")
    world.submit("A")
    world.turn()
    assert world.client.xlen(world.keys.dead_letters) == 1


def test_an_engine_that_beats_and_computes_nothing_is_lost_and_its_sequence_goes_on_elsewhere(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.scheduler.loop.TICK_SECONDS", 0.0)
    stuck = world.join("e0")
    request = world.submit("A", generated=4)
    world.turn()
    world.engines.remove(stuck)  # it takes descriptors no more, and its presence stands
    world.loop.run_iteration()
    healthy = world.join("e1")
    monkeypatch.setattr("services.scheduler.watchdog.STUCK_SECONDS", 0.0)
    world.poke()
    world.loop.run_iteration()
    monkeypatch.setattr("services.scheduler.watchdog.STUCK_SECONDS", 1e9)
    world.turn(6)
    record = world.record(request)
    assert (record.state, record.attempt, record.engine) == (State.COMPLETED, 1, healthy.id)
    assert world.log(request) == [100, 101, 102, 103]
    with pytest.raises(PresenceLost):
        world.run(presence.beat_engine(world.keys, stuck.id, 5))
