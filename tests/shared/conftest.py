"""One fresh pool per test."""

from collections.abc import Iterator

import pytest
import redis

from shared.keys import Keys
from tests.shared.pool import Bench


@pytest.fixture
def bench(redis_client: "redis.Redis", keys: Keys) -> Iterator[Bench]:
    bench = Bench(redis_client, keys)
    yield bench
    bench.close()
