"""Streams that are opened and killed leave nothing behind: no slot, key, connection, task or memory."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import redis
import redis.asyncio

from shared.keys import Keys
from tests.gateway.conftest import MODEL, eventually
from tests.gateway.test_process import Process, backend, options, ready, started
from tests.support.fake_backend import FakeBackend

__all__ = ["backend", "options"]
STREAMS, ROUNDS = 64, 10
KEY = "sk-leaks"
PAGE = 4096
BODY = json.dumps({"model": MODEL, "prompt": "ab", "stream": True, "max_tokens": 150, "n": 1}).encode()


async def open_and_kill(url: str) -> None:
    """One stream: read until its first event is there, then cut the connection."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {place.netloc}\r\nAuthorization: Bearer {KEY}\r\n"
        f"Origin: https://chat.example\r\nIdempotency-Key: {os.urandom(8).hex()}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
    )
    writer.write(head.encode() + BODY)
    async with asyncio.timeout(20):
        first = await reader.readuntil(b"data: ")
    assert b" 200 " in first.split(b"\r\n")[0]
    writer.transport.abort()


def open_files(process: Process) -> int:
    return len(list(Path(f"/proc/{process.child.pid}/fd").iterdir()))


def resident(process: Process) -> int:
    """Bytes of memory that the gateway holds."""
    return int(Path(f"/proc/{process.child.pid}/statm").read_text().split()[1]) * PAGE


@pytest.mark.timeout(120)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc, which only Linux has")
async def test_64_streams_killed_ten_times_leave_nothing_behind(
    backend: FakeBackend, options: list[str], redis_client: "redis.Redis", keys: Keys, tmp_path: Path
) -> None:
    key_file = tmp_path / "keys"
    key_file.write_text(f"alice:{KEY}\n")
    every = ["--api-key-file", str(key_file), "--cors-origins", "https://chat.example", "--record-ttl", "1"]
    async with started(*options, *every) as process, httpx.AsyncClient() as http:
        await ready(process, http)
        backend.limit = 3  # each stream has begun and none can end by itself

        async def killed_round() -> None:
            await asyncio.gather(*(open_and_kill(process.url) for _ in range(STREAMS)))
            await eventually(lambda: not redis_client.zcard(keys.open), within=20)
            await eventually(lambda: not backend.held, within=20)

        await killed_round()
        await killed_round()  # pools and caches have their size now
        files, memory, clients = open_files(process), resident(process), n_clients(redis_client)
        for _ in range(ROUNDS - 2):
            await killed_round()
        await eventually(lambda: open_files(process) <= files)
        assert n_clients(redis_client) <= clients
        assert resident(process) - memory < 8 << 20, "512 streams later"
        await eventually(lambda: not list(redis_client.scan_iter(keys.request("*"))), within=10)
        for left in (keys.tokens("*"), keys.prompt("*", 0), keys.order("*")):
            assert not list(redis_client.scan_iter(left))
        assert not redis_client.hlen(keys.groups)
        metrics = (await http.get(f"{process.url}/metrics", headers={"Authorization": f"Bearer {KEY}"})).text
        assert f'orca_requests_total{{outcome="cancelled"}} {STREAMS * ROUNDS}.0' in metrics
        assert "orca_requests_running 0.0" in metrics


def n_clients(client: "redis.Redis") -> int:
    info: Any = client.info("clients")
    return int(info["connected_clients"])
