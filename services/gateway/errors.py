"""Error codes as HTTP: status, OpenAI type, body. Knows no route."""

import json
from dataclasses import dataclass

from starlette.responses import Response

from shared.errors import ErrorCode, RequestError


@dataclass(frozen=True, slots=True)
class HttpError:
    """How one code looks to an HTTP client."""

    status: int
    type: str
    retry_after: int | None = None
    """Seconds for the `Retry-After` header."""


_INVALID = "invalid_request_error"
HTTP: dict[ErrorCode, HttpError] = {
    ErrorCode.INVALID_VALUE: HttpError(400, _INVALID),
    ErrorCode.UNSUPPORTED_PARAMETER: HttpError(400, _INVALID),
    ErrorCode.CONTEXT_LENGTH_EXCEEDED: HttpError(400, _INVALID),
    ErrorCode.NEVER_FITS: HttpError(400, _INVALID),
    ErrorCode.INVALID_API_KEY: HttpError(401, "authentication_error"),
    ErrorCode.MODEL_NOT_FOUND: HttpError(404, _INVALID),
    ErrorCode.NOT_FOUND: HttpError(404, _INVALID),
    ErrorCode.METHOD_NOT_ALLOWED: HttpError(405, _INVALID),
    ErrorCode.REQUEST_TIMEOUT: HttpError(408, "timeout_error"),
    ErrorCode.IDEMPOTENCY_CONFLICT: HttpError(409, _INVALID),
    ErrorCode.CONFLICT: HttpError(409, _INVALID),
    ErrorCode.UNSUPPORTED_MEDIA_TYPE: HttpError(415, _INVALID),
    ErrorCode.REQUEST_TOO_LARGE: HttpError(413, _INVALID),
    ErrorCode.QUEUE_FULL: HttpError(429, "rate_limit_error", retry_after=1),
    ErrorCode.REQUEST_CANCELLED: HttpError(499, "cancelled_error"),
    ErrorCode.INTERNAL_ERROR: HttpError(500, "server_error"),
    ErrorCode.ENGINE_FAILED: HttpError(500, "server_error"),
    ErrorCode.NOT_READY: HttpError(503, "server_error", retry_after=1),
    ErrorCode.QUEUE_TIMEOUT: HttpError(503, "server_error", retry_after=5),
    ErrorCode.STALL_TIMEOUT: HttpError(503, "server_error", retry_after=5),
}


def error_body(error: RequestError) -> dict[str, dict[str, str | None]]:
    """The OpenAI error object."""
    return {
        "error": {
            "message": error.message,
            "type": HTTP[error.code].type,
            "param": error.param,
            "code": error.code.value,
        }
    }


def error_headers(error: RequestError) -> dict[str, str]:
    """Headers that belong to the code."""
    headers = {}
    retry_after = HTTP[error.code].retry_after
    if retry_after is not None:
        headers["Retry-After"] = str(retry_after)
    if error.code == ErrorCode.INVALID_API_KEY:
        headers["WWW-Authenticate"] = "Bearer"
    return headers


def error_response(error: RequestError) -> Response:
    """The refusal as a whole answer."""
    return Response(
        json.dumps(error_body(error)),
        status_code=HTTP[error.code].status,
        headers=error_headers(error),
        media_type="application/json",
    )


def invalid(param: str | None, message: str) -> RequestError:
    """A value that the contract does not allow."""
    return RequestError(ErrorCode.INVALID_VALUE, message, param)


def too_long(context: int, n_prompt: int, param: str, *, at_least: bool = False) -> RequestError:
    """The refusal of a prompt that leaves no room for an answer."""
    count = f"at least {n_prompt}" if at_least else str(n_prompt)
    return RequestError(
        ErrorCode.CONTEXT_LENGTH_EXCEEDED,
        f"this model's context is {context} tokens and the prompt has {count}: "
        "shorten it so that room is left for an answer",
        param,
    )


def known_code(code: str) -> ErrorCode:
    """A record's code; one that this version does not know counts as an internal error."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.INTERNAL_ERROR
