"""Settings: one frozen model per service, read once from the command line and `ORCA_*`.

A field `kv_slots` is the option `--kv-slots` and the variable `ORCA_KV_SLOTS`. The command line
wins. A variable that names no option of any service stops the start: a misspelt setting must
never be a silent default.
"""

import argparse
import os
import types
from collections.abc import Mapping, Sequence
from typing import Any, Self, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shared.errors import SettingsError

ENV_PREFIX = "ORCA_"
SERVED_NAME_PATTERN = r"[A-Za-z0-9._/-]{1,128}"

OPTIONS = frozenset(
    """
    host port model served_name max_model_len engines pipeline_stages tensor_parallel gateways
    schedulers offline_workers state_dir redis_url broker_url redis_fsync scheduling prefill_mode
    waiting_served_ratio max_waiting_iterations max_batch_tokens max_batch_size kv_slots
    default_max_tokens max_queue max_body_bytes queue_timeout stall_timeout orphan_timeout grace
    record_ttl api_key_file test_faults log_level name gateway_id metrics_host metrics_port threads
    device dtype index url cors_origins
    """.split()
)
"""Every option of every service and of `orca up`."""


class Settings(BaseModel):
    """Base of every service's settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    log_level: str = Field("info", pattern="^(debug|info|warning|error)$", description="least level logged")

    @classmethod
    def load(
        cls,
        argv: Sequence[str],
        *,
        prog: str,
        description: str,
        examples: str = "",
        env: Mapping[str, str] | None = None,
    ) -> Self:
        """Read the settings.

        Raises:
            SettingsError: an unknown variable or an invalid value, named with what it may be.
            SystemExit: from argparse, for `--help` (0) and unknown options (2).
        """
        env = os.environ if env is None else env
        check_environment(env)
        values = {
            name: env[ENV_PREFIX + name.upper()]
            for name in cls.model_fields
            if ENV_PREFIX + name.upper() in env
        }
        given = vars(cls.parser(prog, description, examples).parse_args(list(argv)))
        values.update({name: value for name, value in given.items() if value is not None})
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise SettingsError(_explain(error)) from None

    @classmethod
    def parser(cls, prog: str, description: str, examples: str) -> argparse.ArgumentParser:
        """The command line of these settings."""
        parser = argparse.ArgumentParser(
            prog=prog,
            description=description,
            epilog=f"examples:\n{examples}" if examples else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        for name, field in cls.model_fields.items():
            text = (field.description or "").replace("%", "%%")
            if field.is_required():
                text += " (required)"
            elif field.default not in (None, ""):
                text += f" (default: {field.default})"
            option = "--" + name.replace("_", "-")
            if _is_bool(field.annotation):
                parser.add_argument(option, action="store_const", const="true", help=text)
            else:
                parser.add_argument(option, metavar="VALUE", help=text)
        return parser


class RedisSettings(Settings):
    """Where the pool is and which model's names are used in it."""

    redis_url: str = Field(description="the Redis or Valkey server, redis://HOST:PORT/DB")
    served_name: str = Field(
        description="the model's name in /v1/models and in every Redis name",
        pattern=f"^{SERVED_NAME_PATTERN}$",
    )


def check_environment(env: Mapping[str, str]) -> None:
    """Refuse `ORCA_*` variables that name no option.

    Raises:
        SettingsError: the unknown names, each with the closest known one.
    """
    from difflib import get_close_matches

    unknown = sorted(name for name in env if name.startswith(ENV_PREFIX) and name[5:].lower() not in OPTIONS)
    if unknown:
        hints = []
        for name in unknown:
            close = get_close_matches(name[5:].lower(), OPTIONS, n=1)
            hints.append(name + (f" (did you mean ORCA_{close[0].upper()}?)" if close else ""))
        raise SettingsError(f"unknown setting in the environment: {', '.join(hints)}; correct or unset it")


def _explain(error: ValidationError) -> str:
    parts = []
    for fault in error.errors():
        if not fault["loc"]:
            parts.append(fault["msg"].removeprefix("Value error, "))
            continue
        name = str(fault["loc"][0]) if fault["loc"] else "settings"
        option = f"--{name.replace('_', '-')} (ORCA_{name.upper()})"
        given = "" if fault["type"] == "missing" else f", not {fault['input']!r}"
        reason = "is required" if fault["type"] == "missing" else fault["msg"].removeprefix("Value error, ")
        parts.append(f"{option}: {reason}{given}")
    return "; ".join(parts)


def _is_bool(annotation: Any) -> bool:
    if get_origin(annotation) in (Union, types.UnionType):
        return bool in get_args(annotation)
    return annotation is bool
