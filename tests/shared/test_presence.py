"""Engines and gateways announce themselves, and lapse by themselves."""

import pytest

from shared.channels import batches, presence
from shared.errors import NotLeader, PresenceLost
from shared.protocol.inbox import EngineDraining, EngineJoined, EngineLeft, Reported
from shared.protocol.result import EngineReport, EngineStatus, GatewayStatus
from tests.shared.pool import Bench, make_request

LEASE_MS = presence.LEASE_SECONDS * 1000


def status_of(bench: Bench) -> EngineStatus:
    return EngineStatus(id=bench.engine, name="engine-0", n_slots=100, max_model_len=100)


def test_a_joined_engine_has_a_presence_an_empty_stream_and_is_heard_of(bench: Bench) -> None:
    assert bench.client.smembers(bench.keys.engines) == {bench.engine.encode()}
    assert 0 < bench.client.pttl(bench.keys.engine(bench.engine)) <= LEASE_MS
    assert bench.client.xlen(bench.keys.batches(bench.engine)) == 0
    assert 0 < bench.client.pttl(bench.keys.batches(bench.engine)) <= LEASE_MS
    assert [e.status for e in bench.inbox() if isinstance(e, EngineJoined)] == [status_of(bench)]


def test_every_start_has_an_id_of_its_own_under_one_stable_name() -> None:
    first, second = presence.new_id("engine-0"), presence.new_id("engine-0")
    assert first != second
    assert presence.name_of(first) == presence.name_of(second) == "engine-0"


def test_iteration_numbers_go_on_under_the_stable_name(bench: Bench) -> None:
    request = make_request("a")
    bench.submit(request)
    bench.step(request)
    bench.run(presence.leave_engine(bench.keys, bench.engine))
    again = EngineStatus(id=presence.new_id("engine-0"), name="engine-0", n_slots=9, max_model_len=9)
    assert bench.run(presence.join_engine(bench.keys, again)) == 1
    assert bench.run(presence.ask_report(bench.keys, again.id, bench.fence)) == 2


def test_a_repeated_join_keeps_what_was_dispatched(bench: Bench) -> None:
    request = make_request("a")
    bench.submit(request)
    bench.dispatch(request)
    bench.run(presence.join_engine(bench.keys, status_of(bench)))
    assert bench.client.xlen(bench.keys.batches(bench.engine)) == 1


def test_a_beat_refreshes_every_lifetime_and_says_how_far_it_got(bench: Bench) -> None:
    bench.client.pexpire(bench.keys.engine(bench.engine), 100)
    bench.client.pexpire(bench.keys.batches(bench.engine), 100)
    bench.run(presence.beat_engine(bench.keys, bench.engine, 42))
    assert bench.client.pttl(bench.keys.engine(bench.engine)) > 1000
    assert bench.client.pttl(bench.keys.batches(bench.engine)) > 1000
    assert bench.client.hget(bench.keys.progress, bench.engine) == b"42"


@pytest.mark.parametrize("lost", ["engine", "batches"])
def test_a_forgotten_engine_learns_it_from_its_next_beat(bench: Bench, lost: str) -> None:
    bench.client.delete(getattr(bench.keys, lost)(bench.engine))
    with pytest.raises(PresenceLost):
        bench.run(presence.beat_engine(bench.keys, bench.engine, 1))


def test_a_draining_engine_says_so(bench: Bench) -> None:
    draining = status_of(bench).model_copy(update={"draining": True})
    bench.run(presence.drain_engine(bench.keys, draining))
    assert EngineDraining(engine=bench.engine) in bench.inbox()
    assert b'"draining":true' in (bench.client.get(bench.keys.engine(bench.engine)) or b"")
    assert bench.client.pttl(bench.keys.engine(bench.engine)) > 0
    bench.client.delete(bench.keys.engine(bench.engine))
    with pytest.raises(PresenceLost):
        bench.run(presence.drain_engine(bench.keys, draining))


def test_what_leaves_is_forgotten_and_heard_of(bench: Bench) -> None:
    bench.run(presence.leave_engine(bench.keys, bench.engine))
    assert EngineLeft(engine=bench.engine) in bench.inbox()
    assert not list(bench.client.scan_iter(f"*{bench.engine}*"))
    assert not bench.client.smembers(bench.keys.engines)
    assert not bench.client.hgetall(bench.keys.progress)


def test_only_the_leader_declares_an_engine_lost(bench: Bench) -> None:
    with pytest.raises(NotLeader):
        bench.run(presence.leave_engine(bench.keys, bench.engine, "0:old"))
    assert bench.client.exists(bench.keys.engine(bench.engine))
    bench.run(presence.leave_engine(bench.keys, bench.engine, bench.fence))
    assert not bench.client.exists(bench.keys.engine(bench.engine))


def test_a_question_comes_after_every_earlier_descriptor_and_is_answered_by_the_inbox(bench: Bench) -> None:
    request = make_request("a")
    bench.submit(request)
    bench.dispatch(request)
    number = bench.run(presence.ask_report(bench.keys, bench.engine, bench.fence))
    question = batches.receive(bench.client, bench.keys, engine_id=bench.engine, after=1, block=0)
    assert question is not None
    assert (question.iteration, question.report, question.fence) == (number, True, bench.fence)
    report = EngineReport(fence=bench.fence, status=status_of(bench), last_iteration=1, held=())
    bench.run(presence.report_engine(bench.keys, report))
    assert [e.engine for e in bench.inbox() if isinstance(e, Reported)] == [bench.engine]


def test_questions_need_the_lead_and_a_present_engine(bench: Bench) -> None:
    with pytest.raises(NotLeader):
        bench.run(presence.ask_report(bench.keys, bench.engine, "0:old"))
    with pytest.raises(LookupError):
        bench.run(presence.ask_report(bench.keys, "engine-9.zz", bench.fence))
    gone = status_of(bench).model_copy(update={"id": "engine-9.zz"})
    report = EngineReport(fence=bench.fence, status=gone, last_iteration=0, held=())
    with pytest.raises(PresenceLost):
        bench.run(presence.report_engine(bench.keys, report))


def test_gateways_come_stay_and_go(bench: Bench) -> None:
    keys, status = bench.keys, GatewayStatus(id="gateway-0.cc", url="http://127.0.0.1:1")
    bench.run(presence.join_gateway(keys, status))
    bench.client.pexpire(keys.gateway(status.id), 100)
    bench.run(presence.beat_gateway(keys, status.id))
    assert bench.client.pttl(keys.gateway(status.id)) > 1000
    bench.run(presence.leave_gateway(keys, status.id))
    assert not bench.client.smembers(keys.gateways)
    with pytest.raises(PresenceLost):
        bench.run(presence.beat_gateway(keys, status.id))
