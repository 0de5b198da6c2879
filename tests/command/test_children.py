"""A child process: its log, its back-off, its environment, and its end with its parent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from services.command import children
from services.command.children import Child

FOREVER = [sys.executable, "-c", "import signal; signal.pause()"]


def child(tmp_path: Path, command: list[str]) -> Child:
    return Child("engine", 0, command, tmp_path / "engine-0.log")


def test_output_goes_to_the_log_and_its_end_is_quoted(tmp_path: Path) -> None:
    one = child(tmp_path, [sys.executable, "-c", "print('first'); print('last'); raise SystemExit(3)"])
    one.start()
    assert one.process is not None
    one.process.wait(30)
    assert one.exited() == 3
    assert one.exited() is None
    assert one.last_lines(1) == ["last"]


def test_back_off_doubles_up_to_a_limit_and_forgets_after_a_steady_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = child(tmp_path, FOREVER)
    one.started = time.time()
    delays = [one.back_off() for _ in range(9)]
    assert delays[:4] == [0.5, 1.0, 2.0, 4.0]
    assert delays[-1] == children.LONGEST_BACKOFF
    one.started = time.time() - children.STEADY_SECONDS - 1
    assert one.back_off() == children.FIRST_BACKOFF


def test_children_wait_passively_and_inherit_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCA_PORT", "9")
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    inherited = children.environment()
    assert inherited["OMP_WAIT_POLICY"] == "passive"
    assert not [name for name in inherited if name.startswith("ORCA_")]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks the Linux kernel")
def test_a_child_dies_with_a_killed_parent(tmp_path: Path) -> None:
    """Given a parent that is killed without a word, its child is gone as well."""
    code = (
        "import pathlib, signal; from services.command.children import Child\n"
        f"one = Child('engine', 0, {FOREVER!r}, pathlib.Path({str(tmp_path / 'log')!r}))\n"
        "one.start(); print(one.process.pid, flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        orphan = psutil.Process(int(parent.stdout.readline()))
        os.kill(parent.pid, signal.SIGKILL)
    gone, alive = psutil.wait_procs([orphan], timeout=10)
    assert gone
    assert not alive
