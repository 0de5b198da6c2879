"""Logs are one JSON object a line; probes are answered; an unfit Redis is refused."""

import json
import logging
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import redis
from prometheus_client import CollectorRegistry, Counter

from shared.channels.server_check import check_server, check_server_sync
from shared.errors import SettingsError
from shared.keys import Keys
from shared.observability.health import HealthServer
from shared.observability.logging import JsonFormatter, RateLimit


def test_a_log_line_is_one_json_object_with_its_fields() -> None:
    record = logging.makeLogRecord({"msg": "two\nlines", "levelname": "WARNING", "request_id": "r"})
    line = JsonFormatter("gateway").format(record)
    assert "\n" not in line
    content = json.loads(line)
    assert (content["service"], content["level"], content["message"]) == ("gateway", "warning", "two\nlines")
    assert content["request_id"] == "r"


def test_a_topic_is_logged_once_per_interval() -> None:
    limit = RateLimit(seconds=60)
    assert [limit.ready("a"), limit.ready("a"), limit.ready("b")] == [True, False, True]


def get(url: str) -> tuple[int, str]:
    try:
        with urlopen(url, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_probes_say_what_is_missing() -> None:
    missing = ["no Redis"]
    registry = CollectorRegistry()
    Counter("orca_example_total", "An example.", registry=registry).inc()
    server = HealthServer("127.0.0.1", 0, registry=registry, missing=lambda: missing[0])
    server.start()
    try:
        base = f"http://127.0.0.1:{server.port}"
        assert get(f"{base}/healthz")[0] == 200
        assert get(f"{base}/readyz") == (503, "no Redis\n")
        missing[0] = ""
        assert get(f"{base}/readyz") == (200, "ready\n")
        assert "orca_example_total 1.0" in get(f"{base}/metrics")[1]
        assert get(f"{base}/other")[0] == 404
    finally:
        server.close()


@pytest.mark.parametrize(
    ("version", "policy", "said"),
    [("6.0.16", "noeviction", "6.2"), ("5.0", None, "6.2"), ("7.2.4", "allkeys-lru", "noeviction")],
)
def test_a_server_that_cannot_be_the_pool_is_refused_with_what_to_do(
    version: str, policy: str | None, said: str
) -> None:
    with pytest.raises(SettingsError, match=said):
        check_server({"redis_version": version}, policy)


@pytest.mark.parametrize(("version", "policy"), [("6.2.0", "noeviction"), ("9.1.2", None)])
def test_a_fit_server_is_accepted(version: str, policy: str | None) -> None:
    check_server({"redis_version": version}, policy)


def test_the_check_reads_the_real_server(redis_client: "redis.Redis") -> None:
    assert len(check_server_sync(redis_client)) == 40
    redis_client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(SettingsError, match="noeviction"):
            check_server_sync(redis_client)
    finally:
        redis_client.config_set("maxmemory-policy", "noeviction")


def test_every_name_of_a_model_shares_one_hash_tag() -> None:
    keys = Keys("org/model-1")
    names = [
        keys.request("r"),
        keys.prompt("g", 0),
        keys.tokens("r"),
        keys.order("g"),
        keys.batches("e"),
        keys.committed("e"),
        keys.iterations("e"),
        keys.events("g"),
        keys.engine("e"),
        keys.gateway("g"),
        keys.idempotency("d"),
    ]
    names += [value for value in (getattr(keys, n) for n in dir(keys)) if isinstance(value, str)]
    named = [name for name in names if name.startswith("orca:") or ":" in name]
    assert len(named) >= 24
    assert len(set(named)) == len(set(names) - {"org/model-1", Keys.__doc__, Keys.__module__})
    assert all(name.startswith("orca:v1:{org/model-1}:") for name in named)
