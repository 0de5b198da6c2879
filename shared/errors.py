"""Every error that crosses a boundary, with its stable code.

    OrcaError
    ├── RequestError               the client can see it; has `code`, `param`
    ├── SettingsError              a start-up fault: what is wrong and what to do
    ├── DecodeError                a payload that cannot be read; keeps the bytes
    ├── NotLeader                  the fence was refused: another scheduler leads
    └── PresenceLost               the pool no longer knows this engine or gateway

A code is the `code` of the OpenAI error body, the log field and the metric label in one.
"""

from enum import StrEnum


class ErrorCode(StrEnum):
    """The codes of the HTTP contract."""

    INVALID_VALUE = "invalid_value"
    UNSUPPORTED_PARAMETER = "unsupported_parameter"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    NEVER_FITS = "never_fits"
    INVALID_API_KEY = "invalid_api_key"
    MODEL_NOT_FOUND = "model_not_found"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    REQUEST_TIMEOUT = "request_timeout"
    IDEMPOTENCY_CONFLICT = "idempotency_conflict"
    CONFLICT = "conflict"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    REQUEST_TOO_LARGE = "request_too_large"
    QUEUE_FULL = "queue_full"
    REQUEST_CANCELLED = "request_cancelled"
    INTERNAL_ERROR = "internal_error"
    ENGINE_FAILED = "engine_failed"
    NOT_READY = "not_ready"
    QUEUE_TIMEOUT = "queue_timeout"
    STALL_TIMEOUT = "stall_timeout"


class OrcaError(Exception):
    """Base of all errors of this project."""


class RequestError(OrcaError):
    """A refusal or failure that the client is told about."""

    def __init__(self, code: ErrorCode, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


class SettingsError(OrcaError):
    """The service cannot start as configured; the message says what to change."""


class DecodeError(OrcaError):
    """A payload that is not a message of this protocol version."""

    def __init__(self, reason: str, payload: bytes) -> None:
        super().__init__(reason)
        self.payload = payload


class NotLeader(OrcaError):
    """The pool refused the fence: this scheduler no longer leads."""


class PresenceLost(OrcaError):
    """The pool has forgotten this process; it must join again under a new id."""
