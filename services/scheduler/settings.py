"""The scheduler's settings."""

from typing import Literal

from pydantic import Field

from shared.settings import RedisSettings


class SchedulerSettings(RedisSettings):
    """What one scheduler process is told."""

    scheduling: Literal["iteration", "request-level"] = Field(
        "iteration", description="iteration, or request-level: the baseline"
    )
    max_batch_size: int = Field(
        4096, ge=1, description="most members of one iteration; an engine's own limit holds beside it"
    )
    queue_timeout: float = Field(0.0, ge=0, description="seconds a request may wait; 0 = no limit")
    metrics_host: str = Field("127.0.0.1", description="address of /metrics, /healthz and /readyz")
    metrics_port: int = Field(0, ge=0, le=65535, description="their port; 0 serves none")
