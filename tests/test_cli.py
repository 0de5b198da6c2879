"""The command as a user types it: help, version, refusals with exit codes."""

import importlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from services.command.settings import PASSED_ON, UpSettings
from services.command.state import Row, StateDir

COMMANDS = ("up", "ps", "chat", "doctor")


def orca(
    *words: str, folder: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "services.cli", *words],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=folder,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
    )


def test_version_is_the_distributions() -> None:
    answer = orca("--version")
    assert answer.returncode == 0
    assert answer.stdout.startswith("orca ")
    assert answer.stdout.split()[1][0].isdigit()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(command: str) -> None:
    answer = orca(command, "--help")
    assert answer.returncode == 0, answer.stderr
    assert "examples:" in answer.stdout
    assert f"orca {command}" in answer.stdout


def test_an_unknown_command_is_named_and_the_known_ones_are_listed() -> None:
    answer = orca("upp")
    assert answer.returncode == 2
    assert "'upp'" in answer.stderr
    assert "chat" in answer.stderr


def test_an_unknown_variable_stops_the_start_and_suggests_the_nearest(tmp_path: Path) -> None:
    answer = orca("up", folder=tmp_path, env={"ORCA_PROT": "9000"})
    assert answer.returncode == 2
    assert "ORCA_PROT" in answer.stderr
    assert "ORCA_PORT" in answer.stderr
    assert not (tmp_path / ".orca").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--pipeline-stages", "2"), "--pipeline-stages 2 is not supported"),
        (("--tensor-parallel", "2"), "--tensor-parallel 2 is not supported"),
        (("--prefill-mode", "chunked"), "--prefill-mode"),
        (("--engines", "0"), "--engines"),
        (("--port", "70000"), "--port"),
        (("--served-name", "no spaces"), "--served-name"),
        (("--test-faults", "--host", "0.0.0.0"), "loopback"),
        (("--api-key-file", "nowhere"), "nowhere does not exist"),
        (("--offline-workers", "2"), "unrecognized arguments"),
    ],
)
def test_a_refused_option_is_named_with_exit_code_2(
    words: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    answer = orca("up", *words, folder=tmp_path)
    assert answer.returncode == 2
    assert says in answer.stderr
    assert "Traceback" not in answer.stderr
    assert answer.stdout == ""


def test_a_busy_port_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        answer = orca("up", "--port", str(port), folder=tmp_path)
    assert answer.returncode == 2
    assert f"port {port} on 127.0.0.1 is already in use" in answer.stderr
    assert "--port" in answer.stderr


def test_a_missing_model_directory_is_a_message_not_a_traceback(tmp_path: Path) -> None:
    answer = orca("up", "--port", "0", "--model", "./no-such-model", folder=tmp_path)
    assert answer.returncode == 2
    assert "no-such-model" in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.fixture
def evicting(redis_url: str) -> Iterator[None]:
    """The server may evict keys while the test runs."""
    with redis.Redis.from_url(redis_url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        yield
        client.config_set("maxmemory-policy", "noeviction")


@pytest.mark.usefixtures("evicting")
@pytest.mark.parametrize("command", ["up", "doctor"])
def test_a_server_that_may_evict_is_refused_with_what_to_set(
    command: str, redis_url: str, tmp_path: Path
) -> None:
    answer = orca(command, "--port", "0", "--redis-url", redis_url, folder=tmp_path)
    assert answer.returncode == (2 if command == "up" else 1)
    assert "maxmemory-policy" in answer.stdout + answer.stderr
    assert "noeviction" in answer.stdout + answer.stderr


def test_a_server_that_does_not_answer_is_a_start_fault(tmp_path: Path) -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        port = unheard.getsockname()[1]
        answer = orca(
            "up", "--port", "0", "--redis-url", f"redis://:secret@127.0.0.1:{port}/0", folder=tmp_path
        )
    assert answer.returncode == 2
    assert "--redis-url" in answer.stderr
    assert "secret" not in answer.stderr


def test_a_state_directory_in_use_is_refused_and_its_holder_named(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "state")
    with state.hold():
        answer = orca("up", "--port", "0", "--state-dir", str(state.path))
    assert answer.returncode == 2
    assert f"process {os.getpid()}" in answer.stderr
    assert "--state-dir" in answer.stderr


def test_ps_says_when_nothing_runs(tmp_path: Path) -> None:
    answer = orca("ps", "--json", "--state-dir", str(tmp_path))
    assert answer.returncode == 1
    assert "orca up" in answer.stderr


def test_ps_prints_the_rows_of_the_holder_as_json(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "state")
    with state.hold():
        state.write([Row("redis", 0, 11, 1.5, "redis://127.0.0.1:1/0"), Row("engine", 1, 12, 2.5)])
        answer = orca("ps", "--json", "--state-dir", str(state.path))
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout) == [
        {"service": "redis", "index": 0, "pid": 11, "started": 1.5, "url": "redis://127.0.0.1:1/0"},
        {"service": "engine", "index": 1, "pid": 12, "started": 2.5},
    ]


def test_chat_says_when_no_server_answers() -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        answer = orca("chat", "--url", f"http://127.0.0.1:{unheard.getsockname()[1]}")
    assert answer.returncode == 1
    assert "orca up" in answer.stderr


@pytest.mark.parametrize("service", sorted(PASSED_ON))
def test_what_up_passes_on_is_an_option_of_the_service(service: str) -> None:
    module = importlib.import_module(f"services.{service}.settings")
    classes = [
        thing
        for thing in vars(module).values()
        if isinstance(thing, type) and thing.__module__ == module.__name__ and hasattr(thing, "model_fields")
    ]
    fields = {name for cls in classes for name in cls.model_fields}
    assert set(PASSED_ON[service].split()) <= fields
    assert set(PASSED_ON[service].split()) <= set(UpSettings.model_fields)
