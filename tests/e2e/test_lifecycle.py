"""Ends and restarts of `orca up`: Ctrl-C, a killed child, a killed supervisor, several gateways."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.stack import Stack


@pytest.fixture(scope="module")
def disturbed(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack whose children are killed, one by one; in the end it stops as any other."""
    with Stack(tmp_path_factory.mktemp("disturbed"), tiny_model, "--kv-slots", "1024") as stack:
        yield stack
        assert stack.stop(signal.SIGTERM) == 0, stack.report()


@pytest.mark.parametrize("service", ["engine", "gateway", "scheduler", "redis"])
def test_a_killed_child_is_reported_and_started_again(disturbed: Stack, service: str) -> None:
    """Given a child that is killed, when the stack is ready again, the answer is what it was."""
    before = disturbed.complete("again")["choices"][0]["text"]
    killed = disturbed.pid(service)
    os.kill(killed, signal.SIGKILL)
    disturbed.wait_until("a report", lambda: f"{service} 0 ended with signal 9" in disturbed.errors)
    disturbed.wait_until("a new process", lambda: service in {row["service"] for row in disturbed.ps()})
    assert disturbed.pid(service) != killed
    disturbed.wait_until("readiness", lambda: is_ready(disturbed.url))
    assert disturbed.complete("again")["choices"][0]["text"] == before


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


def test_several_gateways_serve_the_same_stack_and_ctrl_c_ends_them_all(
    tiny_model: Path, tmp_path: Path, redis_url: str
) -> None:
    """Given a server of the operator's own, none is started."""
    options = ("--gateways", "2", "--schedulers", "2", "--kv-slots", "1024", "--redis-url", redis_url)
    with Stack(tmp_path, tiny_model, *options) as stack:
        rows = stack.ps()
        assert "redis" not in {row["service"] for row in rows}
        children = [psutil.Process(row["pid"]) for row in rows]
        urls = [row["url"] for row in rows if row["service"] == "gateway"]
        ports = [int(url.rsplit(":", 1)[1]) for url in urls]
        assert ports[1] == ports[0] + 1
        body = {"model": "tiny", "prompt": "hello", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
        answers = [httpx.post(f"{url}/v1/completions", json=body, timeout=60).json() for url in urls]
        assert len({answer["choices"][0]["text"] for answer in answers}) == 1
        # When Ctrl-C comes, nothing has to be killed and nothing stays.
        assert stack.stop(signal.SIGINT) == 0, stack.report()
        _, alive = psutil.wait_procs(children, timeout=5)
        assert not alive
        assert "killed" not in stack.errors
        assert not (stack.state_dir / "processes.json").exists()


def test_a_second_signal_kills_what_still_drains(tiny_model: Path, tmp_path: Path) -> None:
    """Given a stream that would use its whole grace, a second Ctrl-C ends everything at once."""
    with Stack(tmp_path, tiny_model, "--test-faults", "--kv-slots", "1024", "--grace", "100") as stack:
        body = {"model": "tiny", "prompt": "hello", "max_tokens": 8, "ignore_eos": True, "stream": True}
        headers = {"X-Orca-Fault": "decode:2=sleep:100"}
        with stack.client.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
            assert next(answer.iter_lines())
            os.kill(stack.process.pid, signal.SIGINT)
            stack.wait_until("draining", lambda: "stopping" in stack.errors)
            assert stack.stop(signal.SIGINT) == 1, stack.report()
        assert "gateway 0 is killed: asked twice" in stack.errors
