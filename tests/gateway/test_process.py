"""The gateway as a process: clients that leave, signals, and faults at start."""

import asyncio
import contextlib
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
import redis.asyncio

from shared.keys import Keys
from tests.gateway.conftest import MODEL, bytes_script, eventually, eventually_answers
from tests.support.fake_backend import FakeBackend
from tests.support.tokenizers_tiny import byte_level, write_model

EOS = byte_level()["model"]["vocab"]["</s>"]
START_SECONDS = 20.0


class Process:
    """One gateway process and where it listens."""

    def __init__(self, child: "asyncio.subprocess.Process") -> None:
        self.child = child
        self.url = ""
        self.log = ""

    async def read_log(self) -> None:
        assert self.child.stderr is not None
        while line := await self.child.stderr.readline():
            self.log += line.decode()
            found = re.search(r"listening on (http://[\d.:]+)", line.decode())
            if found:
                self.url = found.group(1)

    async def exit_code(self, within: float = 10.0) -> int:
        async with asyncio.timeout(within):
            return await self.child.wait()


@contextlib.asynccontextmanager
async def started(*options: str) -> AsyncIterator[Process]:
    """`python -m services.gateway` with these options; killed at the end of the block."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.gateway", *options, stderr=asyncio.subprocess.PIPE
    )
    process = Process(child)
    reader = asyncio.create_task(process.read_log())
    try:
        yield process
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()
        await reader


@pytest.fixture
async def backend(redis_url: str, redis_client: "redis.Redis", keys: Keys) -> AsyncIterator[FakeBackend]:
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        fake = FakeBackend(client, keys, bytes_script("x" * 200), eos=EOS)
        await fake.start()
        task = asyncio.create_task(fake.run())
        yield fake
        fake.stop()
        await task


@pytest.fixture
def options(redis_url: str, tmp_path: Path) -> list[str]:
    model = write_model(tmp_path / "model")
    named = {"--redis-url": redis_url, "--served-name": MODEL, "--model": str(model), "--port": "0"}
    return [word for pair in named.items() for word in pair]


async def answers(http: httpx.AsyncClient, url: str, status: int) -> bool:
    return (await http.get(url)).status_code == status


async def ready(process: Process, http: httpx.AsyncClient) -> None:
    await eventually(lambda: bool(process.url), within=START_SECONDS)
    await eventually_answers(lambda: answers(http, f"{process.url}/readyz", 200))


def body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "ab", "max_tokens": 150, **fields}


Ended = Callable[[], bool]


def cancelled_once(pool: "redis.Redis", keys: Keys) -> Ended:
    return lambda: pool.zcard(keys.open) == 0 and pool.hget(keys.totals, "requests:cancelled") == b"1"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("queued", [False, True], ids=["running", "queued"])
async def test_a_client_that_leaves_cancels_its_request(
    options: list[str],
    backend: FakeBackend,
    redis_client: "redis.Redis",
    keys: Keys,
    stream: bool,
    queued: bool,
) -> None:
    backend.limit = 3
    if queued:
        backend.go.clear()
    async with started(*options) as process, httpx.AsyncClient(timeout=20) as http:
        await ready(process, http)
        request = http.build_request("POST", f"{process.url}/v1/completions", json=body(stream=stream))
        call = asyncio.create_task(http.send(request))
        await eventually(lambda: bool(backend.held))
        if not queued:
            await eventually(lambda: any(member.index == 3 for member in backend.held.values()))
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await eventually(cancelled_once(redis_client, keys))
        await eventually(lambda: not backend.held)


async def test_sigterm_lets_streams_end_and_exits_with_zero(
    options: list[str], backend: FakeBackend, redis_client: "redis.Redis"
) -> None:
    backend.limit = 3
    async with started(*options) as process, httpx.AsyncClient(timeout=20) as http:
        await ready(process, http)
        url = f"{process.url}/v1/completions"
        call = asyncio.create_task(http.post(url, json=body(max_tokens=8, stream=True)))
        await eventually(lambda: any(member.index == 3 for member in backend.held.values()))
        process.child.send_signal(signal.SIGTERM)
        await eventually_answers(lambda: answers(http, f"{process.url}/readyz", 503))
        refused = await http.post(url, json=body())
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
        assert (await http.get(f"{process.url}/healthz")).status_code == 200
        backend.limit = None
        response = await call
        assert response.text.endswith("data: [DONE]\n\n")
        assert '"finish_reason":"length"' in response.text
        assert await process.exit_code() == 0
    assert "Traceback" not in process.log


async def test_streams_past_the_grace_time_end_in_an_error_event(
    options: list[str], backend: FakeBackend, redis_client: "redis.Redis", keys: Keys
) -> None:
    backend.limit = 3
    async with started(*options, "--grace", "0.3") as process, httpx.AsyncClient(timeout=20) as http:
        await ready(process, http)
        url = f"{process.url}/v1/completions"
        call = asyncio.create_task(http.post(url, json=body(stream=True)))
        await eventually(lambda: any(member.index == 3 for member in backend.held.values()))
        process.child.send_signal(signal.SIGTERM)
        response = await call
        assert '"code":"not_ready"' in response.text
        assert response.text.endswith("data: [DONE]\n\n")
        assert await process.exit_code() == 0
    assert redis_client.zcard(keys.open) == 0


async def test_a_second_signal_ends_at_once(
    options: list[str], backend: FakeBackend, redis_client: "redis.Redis"
) -> None:
    backend.limit = 3
    async with started(*options) as process, httpx.AsyncClient(timeout=20) as http:
        await ready(process, http)
        url = f"{process.url}/v1/completions"
        call = asyncio.create_task(http.post(url, json=body(stream=True)))
        await eventually(lambda: any(member.index == 3 for member in backend.held.values()))
        process.child.send_signal(signal.SIGTERM)
        await eventually_answers(lambda: answers(http, f"{process.url}/readyz", 503))
        process.child.send_signal(signal.SIGTERM)
        assert await process.exit_code(5) == 1
        await asyncio.gather(call, return_exceptions=True)


async def start_fault(*options: str) -> str:
    """The message of a start that must fail with exit code 2."""
    async with started(*options) as process:
        assert await process.exit_code(START_SECONDS) == 2
    assert "Traceback" not in process.log
    return process.log.strip().splitlines()[-1]


async def test_start_faults_are_one_clear_line_and_exit_code_2(options: list[str], tmp_path: Path) -> None:
    missing = [*options, "--model", str(tmp_path / "none")]
    assert "no directory" in await start_fault(*missing)
    bad_keys = tmp_path / "keys"
    bad_keys.write_text("")
    assert "holds no key" in await start_fault(*options, "--api-key-file", str(bad_keys))
    assert "--max-model-len" in await start_fault(*options, "--max-model-len", "100000")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert f"cannot listen on 127.0.0.1:{port}" in await start_fault(*options, "--port", port)
    assert "loopback" in await start_fault(*options, "--host", "0.0.0.0", "--test-faults")


async def test_a_server_that_may_evict_is_refused(options: list[str], redis_client: "redis.Redis") -> None:
    redis_client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        assert "noeviction" in await start_fault(*options)
    finally:
        redis_client.config_set("maxmemory-policy", "noeviction")


async def test_a_gateway_waits_for_redis_and_is_alive_meanwhile(tmp_path: Path, options: list[str]) -> None:
    absent = [*options, "--redis-url", "redis://127.0.0.1:1/0"]
    async with started(*absent) as process, httpx.AsyncClient(timeout=20) as http:
        await eventually(lambda: bool(process.url), within=START_SECONDS)
        assert (await http.get(f"{process.url}/healthz")).status_code == 200
        not_ready = await http.get(f"{process.url}/readyz")
        assert not_ready.status_code == 503
        assert "Redis" in not_ready.json()["error"]["message"]
        process.child.send_signal(signal.SIGINT)
        assert await process.exit_code() == 0
