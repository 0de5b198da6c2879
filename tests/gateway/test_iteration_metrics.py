"""Every gateway shows what all engines did, from the records in the pool."""

import asyncio
from typing import Any

import pytest
import redis
from prometheus_client import CollectorRegistry

from services.gateway.iteration_metrics import IterationMetrics
from shared.channels.calls import connect_async
from shared.keys import Keys
from shared.protocol.result import IterationRecord, Member, Phase
from shared.protocol.wire import encode


def put(client: "redis.Redis", keys: Keys, engine: str, *phases: Phase, seconds: float = 0.5) -> None:
    record = IterationRecord(
        number=1,
        engine=engine,
        members=tuple(Member(id="a", phase=phase, tokens=3) for phase in phases),
        kv_slots_reserved=0,
        kv_slots_used=0,
        batches_in_flight=1,
        started=0.0,
        duration_seconds=seconds,
    )
    client.xadd(keys.iterations(engine), {"m": encode(record)})


def read(url: str, keys: Keys, metrics: IterationMetrics, *engines: str) -> None:
    async def once() -> None:
        async with connect_async(url) as client:
            await metrics.catch_up(client, keys, list(engines))

    asyncio.run(once())


def test_each_iteration_is_counted_once_under_its_engine_and_phase(
    redis_client: "redis.Redis", redis_url: str, keys: Keys
) -> None:
    registry = CollectorRegistry()
    metrics = IterationMetrics(registry)
    put(redis_client, keys, "e0", Phase.PREFILL, Phase.DECODE)
    put(redis_client, keys, "e1", Phase.DECODE)
    read(redis_url, keys, metrics, "e0", "e1")
    put(redis_client, keys, "e1", Phase.DECODE)
    read(redis_url, keys, metrics, "e0", "e1")

    def value(name: str, **labels: str) -> Any:
        return registry.get_sample_value(f"orca_{name}", labels)

    assert value("iteration_duration_seconds_count", engine="e0", phase="mixed") == 1
    assert value("iteration_duration_seconds_count", engine="e1", phase="decode") == 2
    assert value("batch_size_sum") == 4
    assert value("batch_tokens_sum") == 12
    assert value("engine_busy_ratio", engine="e1") == pytest.approx(0.1)


def test_an_unreadable_record_is_passed_over(redis_client: "redis.Redis", redis_url: str, keys: Keys) -> None:
    registry = CollectorRegistry()
    redis_client.xadd(keys.iterations("e0"), {"m": b"{"})
    put(redis_client, keys, "e0", Phase.DECODE, seconds=60.0)
    read(redis_url, keys, IterationMetrics(registry), "e0")
    assert registry.get_sample_value("orca_batch_size_count") == 1
    assert registry.get_sample_value("orca_engine_busy_ratio", {"engine": "e0"}) == pytest.approx(
        1.0, abs=0.1
    )
