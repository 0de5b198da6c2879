"""Ends and restarts of `orca up`: Ctrl-C, a killed child, a killed supervisor, several gateways."""

import os
import signal
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.stack import Stack


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_signal_drains_and_ends_with_0(tiny_model: Path, tmp_path: Path, number: int) -> None:
    with Stack(tmp_path, tiny_model, "--kv-slots", "1024") as stack:
        children = [psutil.Process(row["pid"]) for row in stack.ps()]
        stack.complete()
        assert stack.stop(number) == 0, stack.report()
        gone, alive = psutil.wait_procs(children, timeout=5)
        assert not alive
        assert len(gone) == 4
        assert "killed" not in stack.errors
        assert not (stack.state_dir / "processes.json").exists()


@pytest.mark.parametrize("service", ["engine", "gateway", "scheduler", "redis"])
def test_a_killed_child_is_reported_and_started_again(tiny_model: Path, tmp_path: Path, service: str) -> None:
    """Given a child that is killed, when the stack is ready again, the answer is what it was."""
    with Stack(tmp_path, tiny_model, "--kv-slots", "1024") as stack:
        before = stack.complete("again")["choices"][0]["text"]
        killed = stack.pid(service)
        os.kill(killed, signal.SIGKILL)
        stack.wait_until("a report", lambda: f"{service} 0 ended with signal 9" in stack.errors)
        stack.wait_until("a new process", lambda: service in {row["service"] for row in stack.ps()})
        assert stack.pid(service) != killed
        stack.wait_until("readiness", lambda: is_ready(stack.url))
        assert stack.complete("again")["choices"][0]["text"] == before
        assert stack.stop() == 0, stack.report()


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks the Linux kernel")
def test_children_do_not_survive_a_killed_supervisor(tiny_model: Path, tmp_path: Path) -> None:
    with Stack(tmp_path, tiny_model, "--kv-slots", "1024") as stack:
        children = [psutil.Process(row["pid"]) for row in stack.ps()]
        os.kill(stack.process.pid, signal.SIGKILL)
        _, alive = psutil.wait_procs(children, timeout=20)
        assert not alive


def test_several_gateways_serve_the_same_stack(tiny_model: Path, tmp_path: Path) -> None:
    with Stack(tmp_path, tiny_model, "--gateways", "2", "--schedulers", "2", "--kv-slots", "1024") as stack:
        urls = [row["url"] for row in stack.ps() if row["service"] == "gateway"]
        ports = [int(url.rsplit(":", 1)[1]) for url in urls]
        assert ports[1] == ports[0] + 1
        body = {"model": "tiny", "prompt": "hello", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
        texts = {
            httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()["choices"][0]["text"]
            for url in urls
        }
        assert len(texts) == 1
        assert stack.stop() == 0, stack.report()
