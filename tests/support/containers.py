"""The compose project for tests: built, started under a name of its own, read through the Docker SDK.

Knows `docker compose` and the published port. Says why by name when no engine answers.
"""

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import docker
import httpx

ROOT = Path(__file__).resolve().parents[2]
BUILD_SECONDS = 1500.0
START_SECONDS = 600.0
STOP_SECONDS = 120.0
IMAGES = ("orca-gateway", "orca-scheduler", "orca-engine")


def missing_plugin() -> str:
    """Why `docker compose` cannot be used; empty when it can."""
    if shutil.which("docker") is None:
        return "the docker command is not installed"
    done = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    return "" if done.returncode == 0 else "the docker command has no compose plugin"


def missing_engine() -> str:
    """Why no container can be started; empty when one can."""
    if reason := missing_plugin():
        return reason
    # The command asks, because the SDK leaves a socket open when nobody answers.
    done = subprocess.run(["docker", "info"], capture_output=True, timeout=30, check=False)
    return "" if done.returncode == 0 else "no Docker engine answers; deploy/ci-docker.sh starts one"


def compose(
    *words: str, seconds: float = 60.0, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `docker compose` at the repository's root; the caller looks at the result."""
    return subprocess.run(
        ["docker", "compose", *words],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


class ComposeStack:
    """One running project; its images have a tag of their own and its data ends with it."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.project = f"orca-test-{os.getpid()}"
        self._env = {"PUBLISH": f"127.0.0.1:{port}", "IMAGE_TAG": "test"}
        self.url = f"http://127.0.0.1:{port}"
        self.docker = docker.from_env()
        self.http = httpx.Client(base_url=self.url, timeout=120, trust_env=False)

    def compose(self, *words: str, seconds: float = STOP_SECONDS) -> str:
        """One compose command that has to succeed; returns its standard output."""
        done = compose("-p", self.project, *words, seconds=seconds, env=self._env)
        assert done.returncode == 0, (
            f"docker compose {' '.join(words)}\n{done.stderr[-4000:]}\n{self.report()}"
        )
        return done.stdout

    def containers(self, service: str) -> list[Any]:
        """The containers of one service, ended ones too."""
        labels = [f"com.docker.compose.project={self.project}", f"com.docker.compose.service={service}"]
        found: list[Any] = self.docker.containers.list(all=True, filters={"label": labels})
        return found

    def run_in_image(self, image: str, code: str) -> str:
        """What a Python program prints in a fresh container of one of the images."""
        words: bytes = self.docker.containers.run(
            f"{image}:test", ["-c", code], entrypoint="python", network_mode="none", remove=True
        )
        return words.decode().strip()

    def chat(self, text: str, max_tokens: int = 24) -> list[dict[str, Any]]:
        """The events of one streamed, greedy chat answer; it has to end in `[DONE]`."""
        model = self.http.get("/v1/models").json()["data"][0]["id"]
        body = {"model": model, "messages": [{"role": "user", "content": text}], "temperature": 0}
        body |= {"max_tokens": max_tokens, "stream": True}
        with self.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            assert answer.status_code == 200, answer.read()
            lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
        assert lines[-1] == "[DONE]", lines
        return [json.loads(line) for line in lines[:-1]]

    def engines(self) -> int:
        """How many engines the pool has, as the gateway reports it."""
        lines = self.http.get("/metrics").text.splitlines()
        return next((int(float(line.split()[-1])) for line in lines if line.startswith("orca_engines ")), 0)

    def wait_until(self, what: str, done: Callable[[], bool], seconds: float = START_SECONDS) -> None:
        """Poll for something that another process brings about."""
        deadline = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < deadline, f"{what} did not happen in {seconds:g} s\n{self.report()}"
            time.sleep(0.25)

    def report(self) -> str:
        """The state and the last lines of every container, for a failing test."""
        states = compose("-p", self.project, "ps", "-a", env=self._env).stdout
        logs = compose("-p", self.project, "logs", "--no-color", "--tail", "40", env=self._env).stdout
        return f"{states}\n{logs[-12000:]}"

    def close(self) -> None:
        """Remove the containers, the network and the data; the images stay as a cache."""
        compose(
            "-p", self.project, "down", "--volumes", "--timeout", "5", seconds=STOP_SECONDS, env=self._env
        )
        self.http.close()
        self.docker.close()
