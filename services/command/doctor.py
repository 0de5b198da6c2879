"""`orca doctor`: checks what `orca up` needs and says what to do about each finding."""

import importlib.util
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import redis
from pydantic import Field

from services.command import redis_server
from services.command.ports import gateway_ports
from services.command.state import StateDir
from shared.errors import SettingsError
from shared.settings import Settings

NEEDED = {
    "gateway": ("fastapi", "httptools", "jinja2", "tokenizers", "uvicorn", "uvloop"),
    "engine": ("torch", "transformers", "safetensors", "gguf", "accelerate"),
}
FREE_DISK_BYTES = 3 << 30


class DoctorSettings(Settings):
    """What to check."""

    host: str = Field("127.0.0.1", description="address that the gateway would listen on")
    port: int = Field(8000, ge=0, le=65535, description="port of the first gateway")
    gateways: int = Field(1, ge=1, le=64, description="gateways; the i-th listens on port + i")
    model: str = Field("demo", description="the model: a Hugging Face directory, a hub id, or 'demo'")
    redis_url: str | None = Field(None, description="a server to check instead of the embedded one")
    state_dir: Path = Field(Path(".orca"), description="the state directory of orca up")


@dataclass(frozen=True, slots=True)
class Finding:
    """One checked thing: what it is, and what to do where it is not well."""

    subject: str
    detail: str
    well: bool = True


def check_packages(_: DoctorSettings) -> Iterator[Finding]:
    for extra, packages in NEEDED.items():
        missing = [name for name in packages if importlib.util.find_spec(name) is None]
        advice = (
            f"missing {', '.join(missing)}; pip install 'orca-serving[{extra}]'" if missing else "installed"
        )
        yield Finding(extra, advice, not missing)


def check_redis(settings: DoctorSettings) -> Iterator[Finding]:
    try:
        if settings.redis_url is None:
            yield Finding("redis", f"embedded server {redis_server.find_server().name}")
            return
        redis_server.check(settings.redis_url)
        yield Finding("redis", "answers, and evicts nothing")
        with redis.Redis.from_url(settings.redis_url, socket_timeout=5) as client:
            yield _durability(client)
    except (SettingsError, redis.RedisError) as error:
        yield Finding("redis", str(error), well=False)


def _durability(client: "redis.Redis") -> Finding:
    try:
        setting = dict(client.config_get("appendonly")).get("appendonly", "unknown")
    except redis.ResponseError:
        setting = "unknown"
    advice = "; a restart loses what was accepted: set appendonly yes" if setting == "no" else ""
    return Finding("redis log", f"append-only file: {setting}{advice}", setting != "no")


def check_model(settings: DoctorSettings) -> Iterator[Finding]:
    if settings.model == "demo":
        yield Finding("model", "the demo model is fetched at the first start")
    elif Path(settings.model).is_dir():
        missing = [n for n in ("config.json", "tokenizer.json") if not (Path(settings.model) / n).is_file()]
        advice = f"{settings.model} lacks {', '.join(missing)}; name a Hugging Face model directory"
        yield Finding("model", advice if missing else f"directory {settings.model}", not missing)
    elif settings.model.startswith((".", "/")) or settings.model.count("/") != 1:
        yield Finding(
            "model", f"no directory {settings.model}; name a directory, a hub id or 'demo'", well=False
        )
    else:
        yield Finding("model", f"{settings.model} is fetched from the hub at the first start")


def check_ports(settings: DoctorSettings) -> Iterator[Finding]:
    try:
        ports = gateway_ports(settings.host, settings.port, settings.gateways)
        yield Finding("ports", f"{settings.host}:{ports[0]} is free")
    except SettingsError as error:
        yield Finding("ports", str(error), well=False)


def check_state(settings: DoctorSettings) -> Iterator[Finding]:
    state = StateDir(settings.state_dir)
    if state.read() is not None:
        yield Finding("state", f"{state.path} is in use by a running orca up", well=False)
        return
    folder = next(path for path in (state.path, *state.path.parents) if path.exists())
    free = shutil.disk_usage(folder).free
    advice = "" if free >= FREE_DISK_BYTES else "; free at least 3 GiB for the model and the logs"
    yield Finding("disk", f"{free / 2**30:.1f} GiB free at {folder}{advice}", free >= FREE_DISK_BYTES)


CHECKS: tuple[Callable[[DoctorSettings], Iterator[Finding]], ...] = (
    check_packages,
    check_redis,
    check_model,
    check_ports,
    check_state,
)


def main(argv: Sequence[str]) -> int:
    """Print every finding; exit code 1 where one needs attention."""
    try:
        settings = DoctorSettings.load(argv, prog="orca doctor", description=DESCRIPTION, examples=EXAMPLES)
    except SettingsError as error:
        print(f"orca: {error}", file=sys.stderr)
        return 2
    findings = [finding for check in CHECKS for finding in check(settings)]
    for finding in findings:
        print(f"{'ok  ' if finding.well else 'FIX '} {finding.subject:<10} {finding.detail}")
    return 0 if all(finding.well for finding in findings) else 1


DESCRIPTION = "Check the installation, Redis, the model and the ports, and say what to do."
EXAMPLES = """\
  orca doctor
  orca doctor --redis-url redis://cache:6379/0 --model ./my-model"""
