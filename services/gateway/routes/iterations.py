"""`GET /v1/iterations`: the recorded iterations of the engines."""

import logging
from typing import Any

from fastapi import APIRouter, Request
from redis.exceptions import RedisError
from starlette.responses import JSONResponse, Response

from services.gateway.context import Gateway, gateway_of
from services.gateway.errors import invalid
from shared.channels.request_pool import RECORDED_ITERATIONS
from shared.errors import DecodeError, ErrorCode, RequestError
from shared.protocol.result import IterationRecord
from shared.protocol.wire import decode

router = APIRouter()

LOG = logging.getLogger(__name__)


@router.get("/v1/iterations")
async def list_iterations(request: Request) -> Response:
    """Iterations, oldest first; of one engine, or of all by their start."""
    gateway = gateway_of(request)
    engine, after = request.query_params.get("engine"), _after(request.query_params.get("after"))
    try:
        known = await _engine_names(gateway)
        if after is not None and engine is None and len(known) > 1:
            raise invalid("engine", "after counts per engine: name one with engine=")
        names = known if engine is None else [name for name in known if name == engine]
        if engine is not None and not names:
            raise RequestError(
                ErrorCode.NOT_FOUND, "no engine of that name has recorded an iteration", "engine"
            )
        records = [record for name in names for record in await _read(gateway, name)]
    except (RedisError, OSError):
        raise RequestError(ErrorCode.NOT_READY, "Redis does not answer: try again later") from None
    chosen = [record for record in records if after is None or record.number > after]
    chosen.sort(key=lambda record: (record.started, record.number))
    data = [record.model_dump(mode="json", exclude={"version", "kind"}) for record in chosen]
    return JSONResponse({"object": "list", "data": data})


def _after(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > 15:
        raise invalid("after", "after must be the number of an iteration")
    return int(text)


async def _engine_names(gateway: Gateway) -> list[str]:
    """Engines that are present or have recorded an iteration."""
    totals: Any = await gateway.client.hkeys(gateway.keys.totals)
    recorded = {name.decode().partition(":")[2] for name in totals if name.startswith(b"iterations:")}
    return sorted(recorded | {engine.name for engine in gateway.presence.engines})


async def _read(gateway: Gateway, name: str) -> list[IterationRecord]:
    entries: Any = await gateway.client.xrevrange(gateway.keys.iterations(name), count=RECORDED_ITERATIONS)
    records = []
    for _, fields in reversed(entries):
        try:
            records.append(decode(IterationRecord, fields.get(b"m", b"")))
        except DecodeError as error:
            LOG.warning("unreadable iteration record: %s", error)
    return records
