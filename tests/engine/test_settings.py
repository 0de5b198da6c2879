"""The engine's settings and their refusals; a start that fails says why and exits with 1."""

import subprocess
import sys
from pathlib import Path

import pytest

from services.engine.__main__ import build_executor, main
from services.engine.settings import EngineSettings
from shared.errors import SettingsError

NEEDED = ["--redis-url", "redis://127.0.0.1:1/0", "--served-name", "test-model"]


def load(*options: str, env: dict[str, str] | None = None) -> EngineSettings:
    return EngineSettings.load([*NEEDED, *options], prog="orca engine", description="", env=env or {})


def test_defaults() -> None:
    settings = load()
    assert (settings.model, settings.max_batch_size, settings.engines) == ("demo", 16, 1)
    assert settings.kv_slots is None
    assert settings.name.startswith("engine-")


def test_options_and_variables_name_the_same() -> None:
    assert load(env={"ORCA_KV_SLOTS": "99", "ORCA_NAME": "engine-7"}).kv_slots == 99
    assert load("--kv-slots", "5", env={"ORCA_KV_SLOTS": "99"}).kv_slots == 5
    assert load("--test-faults").test_faults


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--pipeline-stages", "2", "one rank"),
        ("--tensor-parallel", "4", "one rank"),
        ("--dtype", "bfloat16", "float32"),
        ("--device", "cuda", "cpu"),
        ("--kv-slots", "0", "kv-slots"),
        ("--name", "a b", "name"),
        ("--metrics-port", "70000", "metrics-port"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(option: str, value: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        load(option, value)


def test_the_context_is_lowered_to_what_the_slots_hold(
    llama_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    executor = build_executor(load("--model", str(llama_dir), "--kv-slots", "100"))
    assert (executor.kv.n_slots, executor.model.max_model_len) == (100, 512)
    assert "lowered from 512 to 100" in caplog.text


def test_slots_come_from_free_memory_where_nobody_says(
    llama_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.engine.memory.free_bytes", lambda: 1 << 20)
    bytes_per_slot = 2 * 3 * 2 * 16 * 4
    executor = build_executor(load("--model", str(llama_dir)))
    assert executor.kv.n_slots == (1 << 19) // bytes_per_slot


def test_no_memory_says_what_to_do(llama_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.engine.memory.free_bytes", lambda: 100)
    with pytest.raises(SettingsError, match="--kv-slots"):
        build_executor(load("--model", str(llama_dir)))


def test_a_missing_model_ends_the_start_with_a_sentence(
    tmp_path: Path, redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--redis-url", redis_url, "--served-name", "m", "--model", str(tmp_path)]
    assert main(options) == 2
    message = capsys.readouterr().err
    assert "orca engine: " in message
    assert "config.json" in message
    assert "Traceback" not in message


def test_a_redis_that_evicts_is_refused(
    redis_client: "object", redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    redis_client.config_set("maxmemory-policy", "allkeys-lru")  # type: ignore[attr-defined]
    try:
        assert main(["--redis-url", redis_url, "--served-name", "m"]) == 2
    finally:
        redis_client.config_set("maxmemory-policy", "noeviction")  # type: ignore[attr-defined]
    assert "noeviction" in capsys.readouterr().err


def test_torch_is_not_imported_before_openmp_is_told_to_wait_passively() -> None:
    program = (
        "import os, sys; os.environ.pop('OMP_WAIT_POLICY', None); import services.engine.__main__ as m;"
        "assert 'torch' not in sys.modules; m.main(['--redis-url', 'redis://127.0.0.1:1/0']);"
        "assert os.environ['OMP_WAIT_POLICY'] == 'PASSIVE'"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--served-name" in done.stderr


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert "examples:" in capsys.readouterr().out
