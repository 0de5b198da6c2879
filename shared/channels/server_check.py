"""Is this Redis fit to be the pool? Asked once, at start, by every service.

A cache policy on a queue loses accepted requests without a word, so it is refused rather than
warned about.
"""

from typing import Any

import redis
import redis.asyncio
from redis.exceptions import ResponseError

from shared.errors import SettingsError

OLDEST_REDIS = (6, 2)


def check_server(info: dict[str, Any], policy: str | None) -> None:
    """Check what `INFO server` and `CONFIG GET maxmemory-policy` say.

    Args:
        policy: the eviction policy, or None where the server does not tell.

    Raises:
        SettingsError: the server is too old, or may evict what the pool keeps in it.
    """
    version = str(info.get("redis_version", ""))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers and numbers < OLDEST_REDIS:
        raise SettingsError(
            f"Redis {version} is too old: orca needs Redis 6.2 or newer, or Valkey 8 or newer; "
            "upgrade the server or name another with --redis-url"
        )
    if policy not in (None, "noeviction"):
        raise SettingsError(
            f"Redis may evict what orca keeps in it: maxmemory-policy is {policy!r}; set it to "
            "'noeviction' (CONFIG SET maxmemory-policy noeviction, and in the server's configuration)"
        )


def check_server_sync(client: "redis.Redis") -> str:
    """Check over a blocking client; returns the server's run id.

    Raises:
        SettingsError: as `check_server`.
        redis.RedisError: no answer.
    """
    info: Any = client.info("server")
    try:
        policy: Any = client.config_get("maxmemory-policy")
    except ResponseError:
        policy = {}
    check_server(info, policy.get("maxmemory-policy"))
    return str(info["run_id"])


async def check_server_async(client: "redis.asyncio.Redis") -> str:
    """Check over an asyncio client; returns the server's run id. Raises as `check_server_sync`."""
    info: Any = await client.info("server")
    try:
        policy: Any = await client.config_get("maxmemory-policy")
    except ResponseError:
        policy = {}
    check_server(info, policy.get("maxmemory-policy"))
    return str(info["run_id"])
