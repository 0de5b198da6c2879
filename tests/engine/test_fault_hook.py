"""The fault hook of tests: absent from an engine that was not told to have it."""

import sys
from pathlib import Path

import pytest
import torch

from services.engine.__main__ import build_executor
from services.engine.model.load import LoadedModel
from services.engine.settings import EngineSettings
from tests.support.engine_driver import Driver, alone, sampling


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


@pytest.mark.parametrize("stage", ["prefill", "decode:1"])
def test_a_member_without_memory_is_told_to_try_again_and_the_others_go_on(
    llama: LoadedModel, stage: str
) -> None:
    driver = Driver(llama, test_faults=True)
    driver.add("big", [5, 6, 7], sampling(4), fault=f"{stage}=oom")
    driver.add("other", [8, 9], sampling(4))
    driver.run()
    big = driver.jobs["big"]
    assert (big.code, "out of memory" in big.message) == ("not_ready", True)
    assert driver.jobs["other"].output == alone(llama, [8, 9], sampling(4)).output
    assert driver.executor.kv.n_reserved == 0


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
)
def test_every_kind_of_memory_failure_is_recognised(
    llama: LoadedModel, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(llama)
    job = driver.add("r", [5, 6], sampling(2))

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(type(driver.model), "forward", fail)
    driver.step()
    assert job.code == "not_ready"
