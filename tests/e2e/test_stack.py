"""`orca up` as an operator sees it: ready, seen by `orca ps`, serving, and refusing a second one."""

import subprocess
import time

import httpx
import psutil

from tests.support.stack import ORCA, Stack, text_of

IDLE_SECONDS = 3.0


def test_the_ready_line_is_the_only_word_on_standard_output(stack: Stack) -> None:
    assert stack.ready_line == f"ready {stack.url}\n"
    assert stack.url.startswith("http://127.0.0.1:")
    assert httpx.get(f"{stack.url}/readyz").status_code == 200


def test_ps_names_every_process_of_the_stack(stack: Stack) -> None:
    rows = stack.ps()
    assert sorted((row["service"], row["index"]) for row in rows) == [
        ("engine", 0),
        ("engine", 1),
        ("gateway", 0),
        ("redis", 0),
        ("scheduler", 0),
    ]
    urls = {row["service"]: row["url"] for row in rows if "url" in row}
    assert urls["gateway"] == stack.url
    assert urls["redis"].startswith("redis://127.0.0.1:")


def test_a_streamed_answer_is_the_answer(stack: Stack) -> None:
    events = stack.stream("once upon a time", max_tokens=12)
    whole = stack.complete("once upon a time", max_tokens=12)
    assert text_of(events) == whole["choices"][0]["text"]
    assert whole["usage"]["completion_tokens"] == 12


def test_a_chat_is_answered(stack: Stack) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    answer = stack.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["role"] == "assistant"


def test_both_engines_are_seen_and_give_the_same_answer(stack: Stack) -> None:
    """Given two engines, greedy answers do not depend on which one computed them."""
    answers = {stack.complete("the same", max_tokens=6)["choices"][0]["text"] for _ in range(4)}
    assert len(answers) == 1
    assert "orca_engines 2" in stack.client.get("/metrics").text


def test_a_second_up_on_the_same_state_directory_is_refused(stack: Stack) -> None:
    words = [*ORCA, "up", "--port", "0", "--state-dir", str(stack.state_dir)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert str(stack.process.pid) in done.stderr
    assert len(stack.ps()) == 5


def test_nothing_runs_or_waits_after_the_last_answer(stack: Stack) -> None:
    stack.complete()
    metrics = stack.client.get("/metrics").text
    assert "orca_requests_running 0" in metrics
    assert "orca_requests_waiting 0" in metrics


def test_an_idle_stack_uses_next_to_no_processor(stack: Stack) -> None:
    processes = [psutil.Process(pid) for pid in (stack.process.pid, *(row["pid"] for row in stack.ps()))]

    def used() -> float:
        return sum(p.cpu_times().user + p.cpu_times().system for p in processes)

    before = used()
    time.sleep(IDLE_SECONDS)  # what is measured is that nothing happens meanwhile
    assert used() - before < 0.1 * IDLE_SECONDS
