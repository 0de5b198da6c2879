"""This gateway's presence in the pool, and what it sees of the others there."""

import asyncio
import logging
import time
from typing import Any

from redis.exceptions import RedisError

from services.gateway.metrics import PoolView, parse_gauges
from shared.channels.calls import AsyncPool
from shared.channels.presence import BEAT_SECONDS, beat_gateway, join_gateway, leave_gateway
from shared.errors import DecodeError, PresenceLost
from shared.keys import Keys
from shared.observability.logging import RateLimit
from shared.protocol.result import EngineStatus, GatewayStatus
from shared.protocol.wire import decode

LOG = logging.getLogger(__name__)
LOOK_TIMEOUT = 2.0


class Presence:
    """Joins, beats once a second, and keeps the last sight of the cluster."""

    def __init__(self, pool: AsyncPool, keys: Keys, status: GatewayStatus, own_limit: int) -> None:
        self._pool = pool
        self._keys = keys
        self.status = status
        self._own_limit = own_limit
        self._widest = 0
        self._limit = RateLimit()
        self._beating = asyncio.Lock()
        self._left = False
        self.engines: tuple[EngineStatus, ...] = ()
        self.reachable = False
        """Whether the pool answered the last beat."""

    @property
    def context(self) -> int:
        """The advertised context: the model's, or what the roomiest engine seen could hold."""
        return min(self._own_limit, self._widest) if self._widest else self._own_limit

    async def run(self) -> None:
        """Join, then beat until `leave`; a presence that was lost is announced again."""
        joined = False
        while not self._left:
            started = time.monotonic()
            async with self._beating:
                joined = await self._beat(joined)
            if joined or not self.reachable:
                await asyncio.sleep(max(0.05, BEAT_SECONDS - (time.monotonic() - started)))

    async def _beat(self, joined: bool) -> bool:
        """One beat, or the join; returns whether the pool knows this gateway."""
        try:
            if joined:
                await self._pool.run(beat_gateway(self._keys, self.status.id))
            else:
                await self._pool.run(join_gateway(self._keys, self.status))
            self._see(await read_engines(self._pool, self._keys))
        except PresenceLost:
            return False
        except (RedisError, OSError) as error:
            self.reachable = False
            if self._limit.ready("beat"):
                LOG.warning("the pool does not answer: %s", error)
            return joined
        self.reachable = True
        return True

    async def leave(self) -> None:
        """Say that this gateway stops, after the beat that may be under way."""
        self._left = True
        try:
            async with asyncio.timeout(LOOK_TIMEOUT), self._beating:
                await self._pool.run(leave_gateway(self._keys, self.status.id))
        except (RedisError, OSError, TimeoutError) as error:
            LOG.warning("cannot leave the pool: %s", error)

    def _see(self, engines: tuple[EngineStatus, ...]) -> None:
        self.engines = engines
        for engine in engines:
            self._widest = max(self._widest, min(engine.max_model_len, engine.n_slots))

    async def look(self) -> PoolView:
        """Read the cluster's counters and gauges now.

        Raises:
            redis.RedisError, OSError, TimeoutError: no answer within 2 s.
        """
        async with asyncio.timeout(LOOK_TIMEOUT):
            engines = await read_engines(self._pool, self._keys)
            async with self._pool.client.pipeline(transaction=False) as pipe:
                pipe.hgetall(self._keys.totals)
                pipe.zcard(self._keys.open)
                pipe.hgetall(self._keys.gauges)
                totals, n_open, gauges = await pipe.execute()
        numbers = {name.decode(): float(value) for name, value in totals.items()}
        return PoolView(numbers, int(n_open), engines, parse_gauges(gauges))

    async def missing(self) -> str:
        """What is missing for readiness; empty when ready."""
        try:
            async with asyncio.timeout(LOOK_TIMEOUT):
                leads = await self._pool.client.exists(self._keys.leader)
                engines = await read_engines(self._pool, self._keys)
        except (RedisError, OSError, TimeoutError):
            return "Redis does not answer"
        absent = [] if leads else ["no scheduler leads"]
        if not any(not engine.draining for engine in engines):
            absent.append("no engine is present")
        return ", ".join(absent)


async def read_engines(pool: AsyncPool, keys: Keys) -> tuple[EngineStatus, ...]:
    """Engines whose presence has not lapsed, by name."""
    ids: Any = await pool.client.smembers(keys.engines)
    names = [keys.engine(ident.decode()) for ident in ids]
    payloads: Any = await pool.client.mget(names) if names else []
    engines = []
    for payload in payloads:
        if payload is None:
            continue
        try:
            engines.append(decode(EngineStatus, payload))
        except DecodeError as error:
            LOG.warning("unreadable engine presence: %s", error)
    return tuple(sorted(engines, key=lambda engine: engine.id))
