"""What all routes of one gateway share. Built once, in `app.py`."""

from dataclasses import dataclass, field
from typing import Any

import redis.asyncio
from starlette.requests import Request

from services.gateway.auth import ApiKeys
from services.gateway.hub import Hub
from services.gateway.intake import Intake
from services.gateway.metrics import GatewayMetrics
from services.gateway.presence import Presence
from services.gateway.settings import GatewaySettings
from services.gateway.tokenization import ModelText
from shared.channels.calls import AsyncPool
from shared.channels.tokens import EventSubscription
from shared.keys import Keys


@dataclass
class Gateway:
    """One gateway process."""

    settings: GatewaySettings
    model: ModelText
    api_keys: ApiKeys
    keys: Keys
    client: "redis.asyncio.Redis"
    pool: AsyncPool
    metrics: GatewayMetrics
    hub: Hub
    presence: Presence
    subscription: EventSubscription
    intake: Intake
    started: int
    """Unix time of the start: `created` of the model."""
    draining: bool = field(default=False)


def gateway_of(request: Request) -> Gateway:
    """The gateway that serves this request."""
    gateway: Any = request.app.state.gateway
    assert isinstance(gateway, Gateway)
    return gateway
