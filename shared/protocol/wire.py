"""Encode and decode: the only serialisation in the project.

Messages are frozen pydantic models written as JSON with `version` and `kind`. Readers ignore
fields they do not know, so a field with a default may be added within a version.
"""

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from shared.errors import DecodeError
from shared.keys import PROTOCOL_VERSION


class Message(BaseModel):
    """Base of everything that crosses a process boundary."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="constants")


class Versioned(Message):
    """A message that stands alone on a channel; a foreign version is refused by `decode`."""

    version: int = PROTOCOL_VERSION


M = TypeVar("M", bound=Message)


def encode(message: Message) -> bytes:
    """The message's bytes on the wire."""
    return message.__pydantic_serializer__.to_json(message)


def decode(kind: type[M] | TypeAdapter[M], payload: bytes | str) -> M:
    """Read a message of one kind, or of a tagged union of kinds.

    Raises:
        DecodeError: not JSON, another version, an unknown kind or a missing field; the error
            keeps the bytes so that they can go to the dead letters.
    """
    raw = payload.encode() if isinstance(payload, str) else bytes(payload)
    try:
        message: Any = (
            kind.validate_json(raw) if isinstance(kind, TypeAdapter) else kind.model_validate_json(raw)
        )
    except ValidationError as error:
        reason = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'message'}: {e['msg']}" for e in error.errors()[:3]
        )
        raise DecodeError(reason, raw) from None
    version = getattr(message, "version", PROTOCOL_VERSION)
    if version != PROTOCOL_VERSION:
        raise DecodeError(f"protocol version {version}, this is {PROTOCOL_VERSION}", raw)
    return message  # type: ignore[no-any-return]
