"""A full server, lost scripts and lost replies."""

from collections.abc import Iterator

import pytest
import redis
from redis.exceptions import OutOfMemoryError

from shared.channels import lease, presence
from shared.channels.calls import Call, Pool
from shared.channels.request_pool import detach
from shared.protocol.token import State
from tests.shared.pool import GATEWAY, Bench, make_request

A, B = make_request("a"), make_request("b")


@pytest.fixture
def full(bench: Bench) -> Iterator[Bench]:
    """Two accepted sequences, the first running, on a server without memory for more."""
    bench.submit(A)
    bench.submit(B)
    bench.dispatch(A)
    bench.client.config_set("maxmemory", 1)
    yield bench
    bench.client.config_set("maxmemory", 0)


def test_a_full_server_refuses_new_requests(full: Bench) -> None:
    with pytest.raises(OutOfMemoryError):
        full.submit(make_request("c"))
    full.client.config_set("maxmemory", 0)
    assert not full.client.exists(full.keys.request("c"))
    assert full.client.zcard(full.keys.open) == 2


def test_requests_can_end_on_a_full_server(full: Bench) -> None:
    assert full.end(A, State.CANCELLED) is State.RUNNING
    assert full.end(B, State.CANCELLED) is State.WAITING
    assert full.client.zcard(full.keys.open) == 0


def test_a_reader_can_leave_on_a_full_server(full: Bench) -> None:
    assert full.run(detach(full.keys, sequence_id="a", gateway_id=GATEWAY)) == 0


def test_presence_and_lead_are_kept_and_change_hands_on_a_full_server(full: Bench) -> None:
    full.run(presence.beat_engine(full.keys, full.engine, 1))
    assert full.run(lease.renew(full.keys, fence=full.fence))
    full.run(lease.resign(full.keys, fence=full.fence))
    assert full.run(lease.acquire(full.keys, token="next")) != ""


def test_a_commit_refused_by_a_full_server_can_be_repeated_whole(full: Bench) -> None:
    call = full.commit_call(A)
    with pytest.raises(OutOfMemoryError):
        full.run(call)
    full.client.config_set("maxmemory", 0)
    assert full.tokens(A) == []
    assert full.run(call) == {"a": True}
    assert full.tokens(A) == [7]


def test_a_server_that_forgot_its_scripts_is_told_again(bench: Bench) -> None:
    bench.client.script_flush()
    assert bench.submit(A).outcome == "accepted"


class _Flaky:
    """A client whose first replies are lost after the server has done the work."""

    def __init__(self, client: "redis.Redis", losses: int) -> None:
        self._client = client
        self._losses = losses

    def evalsha(self, *args: object) -> object:
        reply = self._client.evalsha(*args)  # type: ignore[arg-type]
        if self._losses:
            self._losses -= 1
            raise redis.ConnectionError("the reply was lost")
        return reply


def lossy(bench: Bench, losses: int) -> Pool:
    bench.client.script_flush()
    bench.submit(B)  # the script is known now
    return Pool(_Flaky(bench.client, losses))  # type: ignore[arg-type]


def call_of(bench: Bench) -> Call[object]:
    from shared.channels.request_pool import submit

    return submit(  # type: ignore[return-value]
        bench.keys, requests=[A], prompts=[[1, 2]], gateway_id="g", max_queue=10, record_ttl=600
    )


def test_a_lost_reply_is_cured_by_repeating_within_the_patience(bench: Bench) -> None:
    assert lossy(bench, 2).run(call_of(bench), patience=5)
    assert bench.client.zcard(bench.keys.open) == 2


def test_without_patience_a_lost_reply_is_an_error(bench: Bench) -> None:
    with pytest.raises(redis.ConnectionError):
        lossy(bench, 1).run(call_of(bench))
