"""One active scheduler per model: taken, kept, given up, and lost."""

import time
from collections.abc import Iterator

import pytest
import redis

from services.scheduler.leadership import Leadership
from shared.channels import lease
from shared.channels.calls import Pool
from shared.keys import Keys


@pytest.fixture
def pair(redis_client: "redis.Redis", keys: Keys) -> Iterator[tuple[Leadership, Leadership]]:
    first, second = Leadership(Pool(redis_client), keys), Leadership(Pool(redis_client), keys)
    yield first, second
    first.stop(resign=True)
    second.stop(resign=True)


@pytest.fixture
def fast_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.01)


def wait_until_it_leads_no_longer(leadership: Leadership) -> None:
    assert leadership._thread is not None
    leadership._thread.join(10)
    assert not leadership.leads


def test_a_standby_takes_over_at_once_when_the_leader_resigns(pair: tuple[Leadership, Leadership]) -> None:
    first, second = pair
    assert first.try_acquire()
    assert not second.try_acquire()
    fence = first.fence
    first.stop(resign=True)
    assert not first.leads
    assert second.try_acquire()
    assert second.fence != fence


def test_a_standby_takes_over_when_the_lease_lapses(
    pair: tuple[Leadership, Leadership], redis_client: "redis.Redis", keys: Keys
) -> None:
    first, second = pair
    assert first.try_acquire()
    first.stop(resign=False)
    assert not second.try_acquire(), "the lease still stands"
    redis_client.pexpire(keys.leader, 1)
    while redis_client.exists(keys.leader):
        time.sleep(0.001)
    assert second.try_acquire()


@pytest.mark.usefixtures("fast_renewal")
def test_the_lease_is_renewed_while_the_leader_lives(
    pair: tuple[Leadership, Leadership], redis_client: "redis.Redis", keys: Keys
) -> None:
    first, _ = pair
    assert first.try_acquire()
    redis_client.pexpire(keys.leader, 1000)
    deadline = time.monotonic() + 10
    while int(redis_client.pttl(keys.leader)) <= 1000:
        assert time.monotonic() < deadline, "never renewed"
        time.sleep(0.001)
    assert first.leads


@pytest.mark.usefixtures("fast_renewal")
def test_a_leader_whose_lease_another_has_leads_no_longer(
    pair: tuple[Leadership, Leadership], redis_client: "redis.Redis", keys: Keys
) -> None:
    first, second = pair
    assert first.try_acquire()
    redis_client.set(keys.leader, "99:other", px=60_000)
    wait_until_it_leads_no_longer(first)
    assert not second.try_acquire()
    first.stop(resign=True)
    assert redis_client.get(keys.leader) == b"99:other", "only one's own lead can be given up"


@pytest.mark.usefixtures("fast_renewal")
def test_a_leader_without_an_answer_for_a_whole_lease_leads_no_longer(
    pair: tuple[Leadership, Leadership], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = pair

    def silent(*_: object, **__: object) -> str:
        raise redis.ConnectionError("no answer")

    monkeypatch.setattr(lease, "LEASE_SECONDS", 0.05)
    assert first.try_acquire()
    monkeypatch.setattr(first._pool, "run", silent)
    wait_until_it_leads_no_longer(first)
