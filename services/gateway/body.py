"""A request's body as JSON: bounded, strict, refused with a reason. Knows no field."""

import json
import math
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from services.gateway.errors import invalid
from shared.errors import ErrorCode, RequestError

B = TypeVar("B", bound=BaseModel)
DRAIN_FACTOR = 8
"""A body that is too large is read and dropped up to this many times the limit, so that the
refusal reaches a client that is still sending."""


async def read_json(request: Request, limit: int) -> dict[str, Any]:
    """The body as a JSON object.

    Raises:
        RequestError: another media type, too large, no JSON, or no object.
    """
    _check_media_type(request)
    raw = await _read(request, limit)
    try:
        body = json.loads(raw, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError:
        raise invalid(None, "the body is nested too deeply") from None
    except UnicodeDecodeError:
        raise invalid(None, "the body is not UTF-8") from None
    except ValueError as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise invalid(None, f"the body is not JSON: {reason}") from None
    if not isinstance(body, dict):
        raise invalid(None, "the body must be a JSON object")
    return body


def parse(kind: type[B], body: dict[str, Any]) -> B:
    """Read the fields of one kind of body.

    Raises:
        RequestError: the first bad field, named in `param`; no value of the user's is repeated.
    """
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        param = str(fault["loc"][0]) if fault["loc"] else None
        if fault["type"] == "missing":
            raise invalid(param, f"{param} is required") from None
        reason = fault["msg"]
        raise invalid(param, f"{param}: {reason[0].lower()}{reason[1:]}") from None


def _check_media_type(request: Request) -> None:
    kind = request.headers.get("content-type", "application/json").split(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise RequestError(ErrorCode.UNSUPPORTED_MEDIA_TYPE, "send JSON, with Content-Type: application/json")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise RequestError(ErrorCode.UNSUPPORTED_MEDIA_TYPE, "send the body without Content-Encoding")


async def _read(request: Request, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size <= limit:
                parts.append(part)
            elif size > DRAIN_FACTOR * limit:
                break
    except ClientDisconnect:
        raise RequestError(ErrorCode.REQUEST_CANCELLED, "the client left before the body was read") from None
    if size > limit:
        raise RequestError(ErrorCode.REQUEST_TOO_LARGE, f"the body is larger than {limit} bytes")
    return b"".join(parts)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return value
