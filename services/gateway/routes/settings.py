"""`/v1/settings`: what can be changed while the system runs, for whoever may."""

from typing import Any

from fastapi import APIRouter, Request
from pydantic import ConfigDict
from redis.exceptions import RedisError
from starlette.responses import JSONResponse, Response

from services.gateway.body import parse, read_json
from services.gateway.context import Gateway, gateway_of
from services.gateway.errors import invalid
from services.gateway.settings import is_loopback
from shared.channels import runtime_settings
from shared.channels.calls import Call
from shared.errors import ErrorCode, RequestError
from shared.protocol.settings import RuntimeSettings

router = APIRouter()
PATIENCE = 5.0


class SettingsBody(RuntimeSettings):
    """The changes: here an unknown name is no extension but a mistake."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


@router.get("/v1/settings")
async def show(request: Request) -> Response:
    """The settings in force; null is what the scheduler was started with."""
    gateway = _admitted(request)
    try:
        fields: Any = await gateway.client.hgetall(gateway.keys.settings)
    except (RedisError, OSError):
        raise _no_answer() from None
    return _answer(runtime_settings.parse([one for pair in fields.items() for one in pair]))


@router.patch("/v1/settings")
async def change(request: Request) -> Response:
    """Change some of them, durably; they hold from the next decision on."""
    gateway = _admitted(request)
    body = await read_json(request, gateway.settings.max_body_bytes)
    if not body:
        names = ", ".join(RuntimeSettings.model_fields)
        raise invalid(None, f"nothing to change: give one of {names}")
    unknown = sorted(set(body) - set(RuntimeSettings.model_fields))
    if unknown:
        names = ", ".join(RuntimeSettings.model_fields)
        raise invalid(unknown[0][:64], f"there is no such runtime setting; there are {names}")
    return _answer(await _run(gateway, runtime_settings.change(gateway.keys, parse(SettingsBody, body))))


async def _run(gateway: Gateway, call: Call[RuntimeSettings]) -> RuntimeSettings:
    try:
        return await gateway.pool.run(call, patience=PATIENCE)
    except (RedisError, OSError):
        raise _no_answer() from None


def _answer(settings: RuntimeSettings) -> Response:
    return JSONResponse({"object": "settings", **settings.model_dump()})


def _no_answer() -> RequestError:
    return RequestError(ErrorCode.NOT_READY, "Redis does not answer: try again later")


def _admitted(request: Request) -> Gateway:
    """Raises: RequestError: the caller may not see or change how the server runs."""
    gateway = gateway_of(request)
    if gateway.api_keys.required:
        if not request.state.admin:
            raise RequestError(
                ErrorCode.INVALID_API_KEY, "settings need a key that is marked `admin` in the key file"
            )
    elif request.client is None or not is_loopback(request.client.host):
        raise RequestError(
            ErrorCode.INVALID_API_KEY,
            "settings are for clients of this machine; for others start the server with an admin key",
        )
    return gateway
