"""The engine's settings."""

import re
import socket

from pydantic import Field, field_validator

from shared.settings import RedisSettings


def _default_name() -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "-", f"engine-{socket.gethostname()}")[:64]


class EngineSettings(RedisSettings):
    """What one engine process is told."""

    model: str = Field("demo", description="a Hugging Face directory, a hub id, or 'demo'")
    name: str = Field(
        "",
        pattern=r"^[A-Za-z0-9_-]{0,64}$",
        description="stable name in metrics and iteration records; engine-<host name> if not given",
    )
    max_model_len: int | None = Field(
        None, ge=2, description="context in tokens; the model's own if not given, lowered to the K/V slots"
    )
    kv_slots: int | None = Field(
        None, ge=2, description="K/V room in tokens (ORCA's n_slots); from free memory if not given"
    )
    max_batch_size: int = Field(16, ge=1, le=4096, description="most members of one iteration")
    engines: int = Field(1, ge=1, description="engines that share this host's memory")
    threads: int | None = Field(None, ge=1, description="computing threads; all CPUs if not given")
    grace: float = Field(30.0, ge=0, description="seconds for handing work over when told to stop")
    test_faults: bool = Field(False, description="honour the fault header (tests only)")
    metrics_host: str = Field("127.0.0.1", description="address of /metrics, /healthz and /readyz")
    metrics_port: int = Field(0, ge=0, le=65535, description="their port; 0 serves none")
    device: str = Field("cpu", description="where the model runs; cpu")
    dtype: str = Field("float32", description="number format; float32")
    pipeline_stages: int = Field(1, description="pipeline stages; 1")
    tensor_parallel: int = Field(1, description="ranks per stage; 1")

    @field_validator("name")
    @classmethod
    def _named(cls, value: str) -> str:
        return value or _default_name()

    @field_validator("device")
    @classmethod
    def _cpu_only(cls, value: str) -> str:
        if value != "cpu":
            raise ValueError("this version computes on the CPU only: use 'cpu'")
        return value

    @field_validator("dtype")
    @classmethod
    def _float32_only(cls, value: str) -> str:
        if value != "float32":
            raise ValueError("this version computes in 'float32' only")
        return value

    @field_validator("pipeline_stages", "tensor_parallel")
    @classmethod
    def _one_rank(cls, value: int) -> int:
        if value != 1:
            raise ValueError("this version runs each engine as one rank: use 1, and --engines for more")
        return value
