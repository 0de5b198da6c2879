"""The fault header of tests: dead without the switch, and one request's own with it."""

import subprocess
import sys
from typing import Any

import pytest

from services.gateway.settings import GatewaySettings
from shared.errors import SettingsError
from tests.gateway.conftest import MODEL, Stack, StackFactory, bytes_script
from tests.gateway.test_refusals import check_envelope

BODY: dict[str, Any] = {"model": MODEL, "prompt": "ab", "max_tokens": 9}


async def ask(stack: Stack, fault: str) -> Any:
    return await stack.http.post("/v1/completions", json=BODY, headers={"X-Orca-Fault": fault})


async def test_without_the_switch_the_header_does_nothing(
    make_stack: StackFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "shared.faults", None)  # an import of the hook would fail
    stack = await make_stack(bytes_script("hello"))
    for fault in ("tokenize=raise", "prefill=raise", "nonsense"):
        response = await ask(stack, fault)
        assert response.json()["choices"][0]["text"] == "hello"
        assert b'"fault":""' in (
            stack.pool.hget(stack.gateway.keys.request(response.json()["id"]), "body") or b""
        )


async def test_with_the_switch_each_stage_is_done_where_it_belongs(make_stack: StackFactory) -> None:
    stack = await make_stack(bytes_script("hello"), test_faults=True)
    check_envelope(await ask(stack, "tokenize=raise"), 500, "internal_error")
    response = await ask(stack, "tokenize=sleep:0.01, decode:2=sleep:0.5")
    body = stack.pool.hget(stack.gateway.keys.request(response.json()["id"]), "body") or b""
    assert b'"fault":"tokenize=sleep:0.01, decode:2=sleep:0.5"' in body
    for bad in ("decode=raise", "prefill=explode", "decode:0=raise", "prefill", "sample:1=raise", "x=oom:1"):
        check_envelope(await ask(stack, bad), 400, "invalid_value", "X-Orca-Fault")


def test_the_hook_is_one_file_that_no_module_imports_by_itself() -> None:
    """Every module of the product is imported; only a running service with the switch gets the hook."""
    code = """
import importlib, pkgutil, sys, services, shared
for package in (services, shared):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if module.name != "shared.faults" and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
assert "services.gateway.server" in sys.modules and "services.engine.loop" in sys.modules
print([name for name in sys.modules if name.endswith(".faults") and name.startswith(("services", "shared"))])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_switch_is_refused_on_an_open_address() -> None:
    words = ["--redis-url", "redis://x", "--served-name", "m", "--model", "x", "--test-faults"]
    with pytest.raises(SettingsError, match="loopback"):
        GatewaySettings.load([*words, "--host", "0.0.0.0"], prog="gateway", description="", env={})
    for host in ("127.0.0.1", "::1", "localhost"):
        assert GatewaySettings.load(
            [*words, "--host", host], prog="gateway", description="", env={}
        ).test_faults
