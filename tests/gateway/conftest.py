"""A gateway over a real server and a scripted backend, in one event loop."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
import redis.asyncio

from services.gateway.app import build_app, build_gateway, running
from services.gateway.context import Gateway
from services.gateway.settings import GatewaySettings
from shared.keys import Keys
from tests.support.fake_backend import FakeBackend, Script
from tests.support.tokenizers_tiny import write_model

MODEL = "test-model"


@dataclass
class Stack:
    """One gateway, its backend, and a client of it."""

    gateway: Gateway
    backend: FakeBackend
    http: httpx.AsyncClient
    pool: "redis.Redis"

    async def complete(self, prompt: Any = "ab", **fields: Any) -> httpx.Response:
        body = {"model": MODEL, "prompt": prompt, **fields}
        return await self.http.post("/v1/completions", json=body)

    async def chat(self, text: Any = "ab", **fields: Any) -> httpx.Response:
        messages = [{"role": "user", "content": text}] if isinstance(text, str) else text
        return await self.http.post(
            "/v1/chat/completions", json={"model": MODEL, "messages": messages, **fields}
        )


StackFactory = Callable[..., Awaitable[Stack]]


async def eventually(holds: Callable[[], bool], within: float = 8.0) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(within):
        while not holds():  # noqa: ASYNC110 - what is waited for is another task's state
            await asyncio.sleep(0.005)


async def eventually_answers(ask: Callable[[], Awaitable[bool]], within: float = 20.0) -> None:
    """Wait until a condition that must be asked for holds."""
    async with asyncio.timeout(within):
        while not await ask():  # noqa: ASYNC110 - it is another process's state
            await asyncio.sleep(0.02)


def bytes_script(text: str | bytes) -> Script:
    """Every request gets these bytes, one token each (byte-level tokenizer)."""
    raw = text.encode() if isinstance(text, str) else text
    return lambda request, prompt: list(raw)


@pytest.fixture
async def make_stack(
    redis_url: str, redis_client: "redis.Redis", keys: Keys, tmp_path: Path
) -> AsyncIterator[StackFactory]:
    """Builds stacks: `await make_stack(script=..., kind="bytes", **settings)`."""
    async with contextlib.AsyncExitStack() as life:

        async def make(
            script: Script | None = None,
            *,
            kind: str = "bytes",
            backend: bool = True,
            n_slots: int = 10_000,
            model: dict[str, Any] | None = None,
            **settings: Any,
        ) -> Stack:
            path = write_model(tmp_path / kind, kind, **(model or {}))
            values = {"redis_url": redis_url, "served_name": MODEL, "model": path, **settings}
            gateway = build_gateway(GatewaySettings.model_validate(values))
            client = await life.enter_async_context(redis.asyncio.Redis.from_url(redis_url))
            eos = gateway.model.vocabulary.size - len(("</s>", "<end>", "<say>"))
            fake = FakeBackend(client, keys, script or bytes_script("hello"), eos=eos, n_slots=n_slots)
            if backend:
                await fake.start()
                task = asyncio.create_task(fake.run())
                life.push_async_callback(_stop, fake, task)
            await life.enter_async_context(running(gateway))
            transport = httpx.ASGITransport(build_app(gateway), raise_app_exceptions=False)
            http = await life.enter_async_context(
                httpx.AsyncClient(transport=transport, base_url="http://gateway", timeout=20)
            )
            await asyncio.wait_for(gateway.subscription.subscribed.wait(), 5)
            if backend:
                await eventually(lambda: bool(gateway.presence.engines))
            return Stack(gateway, fake, http, redis_client)

        yield make


async def _stop(fake: FakeBackend, task: "asyncio.Task[None]") -> None:
    """End the backend; a fault of its own is the test's."""
    fake.stop()
    await task
