"""Iteration-level scheduling through real processes: the paper's rules, read from the record.

A fault that holds one iteration makes the moments exact: what happens meanwhile has happened
before the next iteration is selected.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.stack import Stack

Iteration = dict[str, Any]
PAIR = [10, 20]


def small_stack(model: Path, home: Path, *options: str) -> Stack:
    """Two members an iteration at most."""
    return Stack(home, model, "--max-batch-size", "2", "--kv-slots", "512", "--test-faults", *options)


@pytest.fixture(scope="module")
def stack(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with small_stack(tiny_model, tmp_path_factory.mktemp("scheduling")) as running:
        yield running


class Asked:
    """One completion in a thread of its own; its id is known once its headers are here."""

    def __init__(self, stack: Stack, prompt: list[int], max_tokens: int, fault: str = "") -> None:
        self._stack = stack
        self._started = threading.Event()
        self._body = {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        self._body |= {"ignore_eos": True, "stream": True}
        self._fault = fault
        self._leave = threading.Event()
        self.id = ""
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._started.wait(30), "the stream never began"

    def _run(self) -> None:
        headers = {"X-Orca-Fault": self._fault} if self._fault else {}
        with (
            httpx.Client(base_url=self._stack.url, timeout=60) as client,
            client.stream("POST", "/v1/completions", json=self._body, headers=headers) as answer,
        ):
            self.id = answer.headers["x-request-id"]
            self._started.set()
            for _ in answer.iter_lines():
                if self._leave.is_set():
                    return

    def leave(self) -> None:
        """Hang up at the next line."""
        self._leave.set()

    def done(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()

    def record(self) -> dict[str, Any]:
        content: dict[str, Any] = self._stack.client.get(f"/v1/requests/{self.id}").json()
        return content

    def wait_for_tokens(self, count: int) -> None:
        self._stack.wait_until(f"{count} tokens", lambda: self.record()["tokens"] >= count)


def iterations(stack: Stack) -> list[Iteration]:
    data: list[Iteration] = stack.client.get("/v1/iterations").json()["data"]
    return data


def batches(stack: Stack, names: dict[str, str]) -> list[tuple[str, int]]:
    """Each iteration that runs any of the named: its members' names and its input tokens."""
    return [
        ("".join(names[m["id"]] for m in i["members"]), sum(m["tokens"] for m in i["members"]))
        for i in iterations(stack)
        if any(m["id"] in names for m in i["members"])
    ]


def submit_during(stack: Stack, lengths: dict[str, int]) -> dict[str, str]:
    """Submit requests of two prompt tokens while one held iteration runs; ids by name."""
    holder = Asked(stack, PAIR, 1, fault="prefill=sleep:2")
    asked = {name: Asked(stack, PAIR, count) for name, count in lengths.items()}
    for one in (holder, *asked.values()):
        one.done()
    return {one.id: name for name, one in asked.items()}


V11 = {"A": 1, "B": 4, "C": 2, "D": 2}


def test_an_early_finisher_leaves_at_once_and_the_next_joins_the_next_iteration(stack: Stack) -> None:
    names = submit_during(stack, V11)
    assert batches(stack, names) == [("AB", 4), ("BC", 3), ("BC", 2), ("BD", 3), ("D", 1)]


def test_the_baseline_answers_a_batch_when_its_last_member_ends(tiny_model: Path, tmp_path: Path) -> None:
    with small_stack(tiny_model, tmp_path, "--scheduling", "request-level") as baseline:
        names = submit_during(baseline, V11)
        assert [members for members, _ in batches(baseline, names)] == ["AB", "CD"]
        passes = [i["forward_passes"] for i in iterations(baseline)[-2:]]
        assert passes == [4, 2]
        ended = {name: record_of(baseline, id_)["times"]["ended"] for id_, name in names.items()}
        assert ended["A"] == pytest.approx(ended["B"], abs=0.05)
        assert ended["C"] > ended["B"]


def record_of(stack: Stack, request_id: str) -> dict[str, Any]:
    content: dict[str, Any] = stack.client.get(f"/v1/requests/{request_id}").json()
    return content


def test_an_arrival_during_an_iteration_runs_in_the_next(stack: Stack) -> None:
    running = Asked(stack, PAIR, 6, fault="decode:2=sleep:1.5")
    running.wait_for_tokens(2)
    late = Asked(stack, PAIR, 2)
    for one in (running, late):
        one.done()
    held = [i for i in iterations(stack) if i["duration_seconds"] > 1.0][-1]
    first = next(i for i in iterations(stack) if late.id in [m["id"] for m in i["members"]])
    assert [m["id"] for m in held["members"]] == [running.id]
    assert first["number"] == held["number"] + 1


@pytest.mark.parametrize("how", ["deleted", "hung up"])
def test_a_cancelled_member_is_gone_with_its_slots_before_the_next_iteration(stack: Stack, how: str) -> None:
    staying = Asked(stack, PAIR, 110, fault="decode:100=sleep:1.5")
    leaving = Asked(stack, PAIR, 300)
    staying.wait_for_tokens(100)
    shown = leaving.record()["tokens"]
    if how == "deleted":
        assert stack.client.delete(f"/v1/requests/{leaving.id}").status_code == 204
    else:
        leaving.leave()
    staying.done()
    leaving.done()
    after = [i for i in iterations(stack) if staying.id in [m["id"] for m in i["members"]]]
    at = next(n for n, i in enumerate(after) if i["duration_seconds"] > 1.0)
    held, following = after[at], after[at + 1]
    if how == "deleted":
        assert {m["id"] for m in held["members"]} == {staying.id, leaving.id}
        assert [m["id"] for m in following["members"]] == [staying.id]
        assert following["kv_slots_reserved"] == held["kv_slots_reserved"] - (2 + 300)
        assert leaving.record()["tokens"] == shown
    stack.wait_until("cancelled", lambda: leaving.record()["state"] == "cancelled")
    assert all(leaving.id not in [m["id"] for m in i["members"]] for i in after[at + 3 :])


def test_a_client_that_leaves_a_whole_request_or_the_queue_frees_its_place(stack: Stack) -> None:
    holder = Asked(stack, PAIR, 1, fault="prefill=sleep:2")
    before = cancelled(stack)
    with ThreadPoolExecutor(3) as threads:
        body = {"model": "tiny", "prompt": PAIR, "max_tokens": 200, "ignore_eos": True}

        def hang_up(_: int) -> None:
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{stack.url}/v1/completions", json=body, timeout=httpx.Timeout(10, read=0.7))

        list(threads.map(hang_up, range(3)))
    holder.done()
    stack.wait_until("three cancelled", lambda: cancelled(stack) == before + 3)
    stack.wait_until("free slots", lambda: reserved(stack) == 0)
    ran = {m["id"] for i in iterations(stack)[-3:] for m in i["members"]}
    assert ran <= {holder.id, *(m["id"] for i in iterations(stack)[:-2] for m in i["members"])}


def value(stack: Stack, name: str) -> float:
    lines = stack.client.get("/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def cancelled(stack: Stack) -> float:
    return value(stack, 'orca_requests_total{outcome="cancelled"}')


def reserved(stack: Stack) -> float:
    return value(stack, "orca_kv_slots_reserved{")
