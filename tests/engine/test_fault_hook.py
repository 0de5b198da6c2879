"""The fault hook of tests: absent from an engine that was not told to have it."""

import sys
from pathlib import Path

import pytest

from services.engine.__main__ import build_executor
from services.engine.settings import EngineSettings


def settings(model: Path, *more: str) -> EngineSettings:
    words = ["--redis-url", "redis://unused", "--served-name", "tiny", "--model", str(model)]
    return EngineSettings.load([*words, "--kv-slots", "600", *more], prog="engine", description="", env={})


def test_without_the_switch_an_engine_never_imports_the_hook(
    llama_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "shared.faults", None)  # an import of it would fail
    assert build_executor(settings(llama_dir)).faults is None


def test_with_the_switch_it_has_one(llama_dir: Path) -> None:
    assert build_executor(settings(llama_dir, "--test-faults")).faults is not None
