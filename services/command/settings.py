"""The settings of `orca up`, and which of them each child process is given.

Knows names, defaults and ranges; a service's own settings class says what its options mean.
"""

import os
import re
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from shared.settings import SERVED_NAME_PATTERN, Settings

DEMO_SERVED_NAME = "smollm2-135m-instruct"

PASSED_ON = {
    "gateway": "max_model_len default_max_tokens max_queue max_body_bytes queue_timeout stall_timeout "
    "orphan_timeout grace record_ttl api_key_file cors_origins test_faults log_level",
    "scheduler": "scheduling max_batch_size queue_timeout log_level",
    "engine": "max_model_len kv_slots max_batch_size engines test_faults grace log_level",
}
"""Settings of `orca up` that a service takes under the same name."""


class UpSettings(Settings):
    """Everything that `orca up` can be told."""

    host: str = Field("127.0.0.1", description="address that the gateway listens on")
    port: int = Field(8000, ge=0, le=65535, description="port of the first gateway; 0 picks a free one")
    model: str = Field("demo", min_length=1, description="a Hugging Face directory, a hub id, or 'demo'")
    served_name: str = Field("", pattern=f"^({SERVED_NAME_PATTERN})?$", description="its name in /v1/models")
    max_model_len: int | None = Field(None, ge=1, description="context length; the model's by default")
    engines: int = Field(1, ge=1, le=64, description="engine replicas")
    gateways: int = Field(1, ge=1, le=64, description="gateways; the i-th listens on port + i")
    schedulers: int = Field(1, ge=1, le=8, description="schedulers; one leads, the others stand by")
    pipeline_stages: int = Field(1, ge=1, description="pipeline stages of each engine; only 1 so far")
    tensor_parallel: int = Field(1, ge=1, description="tensor-parallel ranks of each engine; only 1 so far")
    state_dir: Path = Field(Path(".orca"), description="pid file, logs, the embedded server's data")
    redis_url: str | None = Field(None, description="use this server and start none")
    redis_fsync: Literal["always", "everysec", "no"] = Field(
        "everysec", description="when the embedded server's log reaches the disk"
    )
    scheduling: Literal["iteration", "request-level"] = Field(
        "iteration", description="iteration, or request-level: the baseline"
    )
    prefill_mode: Literal["mixed"] = Field("mixed", description="how prefill shares iterations with decode")
    max_batch_size: int | None = Field(None, ge=1, description="most requests of one iteration; 16 on CPU")
    kv_slots: int | None = Field(
        None, ge=1, description="K/V room of one engine, in tokens; from free memory"
    )
    default_max_tokens: int = Field(
        1024, ge=0, description="for requests that bring none; 0 = all the context"
    )
    max_queue: int = Field(1000, ge=1, description="accepted and unfinished sequences before 429")
    max_body_bytes: int = Field(16 << 20, ge=1024, description="larger bodies are refused with 413")
    queue_timeout: float = Field(0.0, ge=0, description="seconds a request may wait; 0 = no limit")
    stall_timeout: float = Field(60.0, gt=0, description="seconds of silence before a stream fails")
    orphan_timeout: float = Field(
        30.0, ge=0, description="not in force yet: a dead gateway's requests run to their end"
    )
    grace: float = Field(30.0, ge=0, description="seconds that open streams get when the stack stops")
    record_ttl: float = Field(600.0, gt=0, description="seconds that an ended request's record is kept")
    api_key_file: Path | None = Field(None, description="one name:key a line; without it the server is open")
    cors_origins: str = Field(
        "", description="origins whose pages may use the server, with commas; * for all"
    )
    threads: int | None = Field(None, ge=1, description="threads of each engine; the processors shared out")
    test_faults: bool = Field(False, description="honour the X-Orca-Fault header; loopback only")

    @model_validator(mode="after")
    def _agree(self) -> Self:
        for name in ("pipeline_stages", "tensor_parallel"):
            if getattr(self, name) != 1:
                raise ValueError(f"--{name.replace('_', '-')} {getattr(self, name)} is not supported; use 1")
        if self.test_faults and not is_loopback(self.host):
            raise ValueError(
                f"--test-faults lets clients break requests, so it needs a loopback --host, not {self.host}"
            )
        if self.port and self.port + self.gateways - 1 > 65535:
            raise ValueError("--port plus --gateways goes over 65535; choose a lower --port")
        if self.api_key_file is not None and not self.api_key_file.is_file():
            raise ValueError(f"--api-key-file {self.api_key_file} does not exist; write one name:key a line")
        return self


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def served_name_of(settings: UpSettings) -> str:
    """The name in `/v1/models`: as given, or made from the model's."""
    if settings.served_name:
        return settings.served_name
    if settings.model == "demo":
        return DEMO_SERVED_NAME
    base = (
        Path(settings.model).resolve().name
        if Path(settings.model).is_dir()
        else settings.model.split("/")[-1]
    )
    return re.sub(r"[^A-Za-z0-9._-]+", "-", base).strip("-").lower()[:128] or "model"


def threads_of(settings: UpSettings) -> int:
    """Threads of one engine: the processors this process may use, shared out."""
    if settings.threads is not None:
        return settings.threads
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, usable // settings.engines)


def arguments(settings: UpSettings, service: str) -> Iterator[str]:
    """The options of `orca up` that a service takes as they are."""
    for name in PASSED_ON[service].split():
        value = getattr(settings, name)
        if value is None or value is False or value == "":
            continue
        yield "--" + name.replace("_", "-")
        if value is not True:
            yield str(value)
