"""How an atomic step is run: one Lua script per step, safe to repeat after a lost reply.

Knows how to reach Redis and nothing of what the steps mean. Both runners repeat a call whose
reply was lost, with growing pauses, for as long as `patience` says.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib import resources
from typing import Any, Generic, TypeVar

import redis
import redis.asyncio
from redis import exceptions

T = TypeVar("T")
Argument = str | bytes | int | float
TROUBLE = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.BusyLoadingError,
    exceptions.ReadOnlyError,
    OSError,
)
"""What a repeat may cure: the server is away, loading, or the reply was lost."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One atomic step, ready to run."""

    script: str
    keys: tuple[str, ...]
    args: tuple[Argument, ...]
    parse: Callable[[Any], T]


@cache
def source(script: str) -> str:
    """The text of a script, by its file's stem, behind the helpers that all scripts share."""
    folder = resources.files("shared.channels") / "lua"
    return "".join((folder / f"{name}.lua").read_text("utf-8") for name in ("_lib", script))


@cache
def digest(script: str) -> str:
    """The name under which Redis caches a script."""
    return sha1(source(script).encode(), usedforsecurity=False).hexdigest()


class Pool:
    """Runs steps over one blocking connection pool."""

    def __init__(self, client: "redis.Redis", patience: float = 0.0) -> None:
        self.client = client
        self._patience = patience

    def run(self, call: Call[T], patience: float | None = None) -> T:
        """Run a step.

        Args:
            patience: seconds for which a call without a reply is repeated; infinity never gives up.

        Raises:
            redis.RedisError: the script failed, or there was no reply within `patience`.
        """
        end = time.monotonic() + (self._patience if patience is None else patience)
        pause = FIRST_PAUSE
        while True:
            try:
                return call.parse(self._once(call))
            except TROUBLE:
                if time.monotonic() + pause > end:
                    raise
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    def _once(self, call: Call[T]) -> Any:
        try:
            return self.client.evalsha(digest(call.script), len(call.keys), *call.keys, *call.args)
        except exceptions.NoScriptError:
            return self.client.eval(source(call.script), len(call.keys), *call.keys, *call.args)


class AsyncPool:
    """Runs steps over one asyncio connection pool."""

    def __init__(self, client: "redis.asyncio.Redis", patience: float = 0.0) -> None:
        self.client = client
        self._patience = patience

    async def run(self, call: Call[T], patience: float | None = None) -> T:
        """Run a step; as `Pool.run`."""
        end = time.monotonic() + (self._patience if patience is None else patience)
        pause = FIRST_PAUSE
        while True:
            try:
                return call.parse(await self._once(call))
            except TROUBLE:
                if time.monotonic() + pause > end:
                    raise
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _once(self, call: Call[T]) -> Any:
        keys_and_args = (*call.keys, *call.args)
        try:
            return await self.client.evalsha(digest(call.script), len(call.keys), *keys_and_args)
        except exceptions.NoScriptError:
            return await self.client.eval(source(call.script), len(call.keys), *keys_and_args)


def connect(url: str, *, timeout: float = 10.0) -> "redis.Redis":
    """A blocking client whose socket timeout is well above any blocking read's."""
    return redis.Redis.from_url(
        url, socket_timeout=timeout, socket_connect_timeout=5.0, health_check_interval=15, retry=None
    )


def connect_async(url: str, *, timeout: float = 10.0, max_connections: int = 64) -> "redis.asyncio.Redis":
    """An asyncio client over a bounded pool that waits for a free connection."""
    pool = redis.asyncio.BlockingConnectionPool.from_url(
        url,
        socket_timeout=timeout,
        socket_connect_timeout=5.0,
        health_check_interval=15,
        max_connections=max_connections,
        timeout=timeout,
        retry=None,
    )
    return redis.asyncio.Redis.from_pool(pool)
