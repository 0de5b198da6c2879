"""The gateway's settings, checked at start."""

import re
from ipaddress import ip_address
from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator

from shared.settings import RedisSettings

_ORIGIN = re.compile(r"https?://[A-Za-z0-9.-]+(:\d{1,5})?|https?://\[[0-9A-Fa-f:.]+\](:\d{1,5})?")


class GatewaySettings(RedisSettings):
    """Everything an operator can set on a gateway."""

    model: Path = Field(description="directory with config.json and tokenizer.json")
    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0 picks a free one")
    gateway_id: str = Field(
        "gateway-0", pattern=r"^[A-Za-z0-9_-]{1,64}$", description="stable name of this gateway"
    )
    max_model_len: int | None = Field(
        None, ge=2, description="context in tokens; absent: the model's, or what an engine can hold"
    )
    default_max_tokens: int = Field(
        1024, ge=0, description="answer length for requests that bring none; 0 = rest of the context"
    )
    max_queue: int = Field(1000, ge=1, description="accepted and unfinished sequences, over all gateways")
    max_body_bytes: int = Field(16 * 1024 * 1024, ge=1024, description="largest request body")
    queue_timeout: float = Field(
        0.0, ge=0, description="seconds a request may wait, kept by the scheduler; 0 = no limit"
    )
    stall_timeout: float = Field(
        60.0, ge=0, description="seconds a running stream may be silent, ten times that in prefill; 0 = off"
    )
    orphan_timeout: float = Field(
        30.0, ge=0, description="not in force yet: a dead gateway's requests run to their end"
    )
    grace: float = Field(30.0, ge=0, description="seconds open streams get when the gateway stops")
    record_ttl: float = Field(600.0, ge=1, description="seconds an ended request's record is kept")
    api_key_file: Path | None = Field(None, description="file of keys, one `name:key` or key a line")
    cors_origins: str = Field(
        "", description="origins whose pages may use this server, separated by commas; * for all"
    )
    test_faults: bool = Field(False, description="obey the X-Orca-Fault header; loopback hosts only")

    @field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, text: str) -> str:
        origins_of(text)
        return text

    @property
    def origins(self) -> tuple[str, ...]:
        """Origins whose pages may use this server."""
        return origins_of(self.cors_origins)

    @model_validator(mode="after")
    def _faults_stay_at_home(self) -> Self:
        if self.test_faults and not is_loopback(self.host):
            raise ValueError(f"--test-faults is refused on host {self.host}: use a loopback address")
        return self


def origins_of(text: str) -> tuple[str, ...]:
    """The origins that a setting names.

    Raises:
        ValueError: one is no `scheme://host` with an optional port, and not `*`.
    """
    origins = tuple(part.strip() for part in text.split(",") if part.strip())
    for origin in origins:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise ValueError(
                f"{origin!r} is no origin: write https://host or https://host:port, or * for all"
            )
    return origins


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
