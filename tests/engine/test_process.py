"""The engine as a process: ready only when it works, signals, exit codes."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from httpx import get

from shared.keys import Keys
from shared.protocol.inbox import EngineLeft
from shared.protocol.result import EngineStatus
from shared.protocol.wire import decode
from tests.conftest import free_port
from tests.engine.test_loop import Leader

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(redis_url: str, llama_dir: Path) -> Iterator[Start]:
    children: list[subprocess.Popen[bytes]] = []

    def run(*options: str) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "services.engine", "--redis-url", redis_url]
        words += ["--served-name", "test-model", "--model", str(llama_dir), "--name", "engine-0", *options]
        children.append(subprocess.Popen(words, env=os.environ | {"ORCA_THREADS": "1"}))
        return children[-1]

    yield run
    for child in children:
        if child.poll() is None:
            child.kill()
        child.wait(10)


@pytest.fixture
def leader(redis_client: "redis.Redis", keys: Keys) -> Leader:
    return Leader(redis_client, keys)


def test_an_engine_joins_serves_metrics_and_leaves_on_sigterm(start: Start, leader: Leader) -> None:
    port = free_port()
    child = start("--metrics-port", str(port), "--kv-slots", "300", "--max-batch-size", "4")
    status = leader.joined()
    assert (status.name, status.n_slots, status.max_model_len, status.max_batch_size) == (
        "engine-0",
        300,
        300,
        4,
    )
    presence = leader.client.get(leader.keys.engine(status.id))
    assert decode(EngineStatus, presence) == status  # type: ignore[arg-type]
    assert get(f"http://127.0.0.1:{port}/readyz").text == "ready\n"
    assert 'orca_kv_slots{engine="engine-0"} 300.0' in get(f"http://127.0.0.1:{port}/metrics").text
    assert leader.dispatch(leader.first(leader.submit("r1", max_new_tokens=1))).outputs[0].ended

    child.send_signal(signal.SIGTERM)

    assert child.wait(60) == 0
    assert leader.wait_for(EngineLeft).engine == status.id


def test_a_second_signal_ends_it_at_once(start: Start, leader: Leader) -> None:
    child = start("--grace", "60")
    leader.joined()
    leader.dispatch(leader.first(leader.submit("r1")))
    child.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(1.5)

    child.send_signal(signal.SIGTERM)

    assert child.wait(60) == -signal.SIGTERM
