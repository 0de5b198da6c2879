"""API keys: who is asking. Keys are compared in constant time and never logged."""

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shared.errors import ErrorCode, RequestError, SettingsError

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
OPEN_PATHS = frozenset({"/healthz", "/health", "/readyz"})
"""The only paths that answer without a key."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who asks."""

    owner: str = ""
    admin: bool = False


class ApiKeys:
    """The keys of a server; without any, everybody is the owner with the empty name."""

    def __init__(self, owners: Mapping[str, Identity]) -> None:
        """Args: `owners`: key -> whose it is."""
        self._owners = {key.encode(): owner for key, owner in owners.items()}

    @property
    def required(self) -> bool:
        """Whether a key is needed at all."""
        return bool(self._owners)

    @classmethod
    def load(cls, path: Path | None) -> "ApiKeys":
        """Read a key file: one `name:key`, or a key alone, a line, with `admin` behind it for one that
        may change settings; `#` begins a comment line.

        Raises:
            SettingsError: the file cannot be read, holds no key, or one twice.
        """
        if path is None:
            return cls({})
        try:
            lines = path.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"--api-key-file: {path} cannot be read: {error}") from None
        owners: dict[str, Identity] = {}
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            words = line.split()
            admin = len(words) == 2 and words[1] == "admin"
            name, _, key = (words[0] if admin else line.strip()).rpartition(":")
            if not key or (name and not _NAME.fullmatch(name)) or any(c.isspace() for c in key):
                raise SettingsError(
                    f"--api-key-file: line {number} of {path} is no `name:key` and no key"
                    " (with `admin` behind it or not)"
                )
            if key in owners:
                raise SettingsError(f"--api-key-file: line {number} of {path} repeats a key")
            name = name or f"key-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
            owners[key] = Identity(name, admin)
        if not owners:
            raise SettingsError(f"--api-key-file: {path} holds no key; without the option the server is open")
        return cls(owners)

    def identify(self, authorization: str | None) -> Identity:
        """Who asks, from the Authorization header.

        Raises:
            RequestError: `invalid_api_key`.
        """
        if not self._owners:
            return Identity()
        scheme, _, given = (authorization or "").partition(" ")
        owner = None
        if scheme.lower() == "bearer":
            for key, name in self._owners.items():  # all of them: the time tells nothing
                if hmac.compare_digest(key, given.strip().encode(errors="replace")):
                    owner = name
        if owner is None:
            raise RequestError(
                ErrorCode.INVALID_API_KEY, "no valid API key: send `Authorization: Bearer <key>`"
            )
        return owner
