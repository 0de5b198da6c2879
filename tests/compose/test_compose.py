"""The stack as containers, on a real engine: built, asked, scaled, stopped.

The tests run in this order on one project; the last one stops it.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.containers import BUILD_SECONDS, IMAGES, START_SECONDS, ComposeStack, missing_engine

pytestmark = [pytest.mark.compose, pytest.mark.slow, pytest.mark.timeout(BUILD_SECONDS + START_SECONDS + 300)]

SERVICES = ("gateway", "scheduler", "engine")
IMPORTABLE = """
from importlib.util import find_spec
names = ("torch", "transformers", "fastapi", "services.gateway", "services.scheduler", "services.engine")
print(" ".join(name for name in names if find_spec(name)))
"""


@pytest.fixture(scope="module")
def stack() -> Iterator[ComposeStack]:
    if reason := missing_engine():
        pytest.skip(reason)
    running = ComposeStack()
    try:
        running.compose("build", seconds=BUILD_SECONDS)
        running.compose(
            "up", "--detach", "--wait", "--wait-timeout", str(int(START_SECONDS)), seconds=START_SECONDS + 60
        )
        yield running
    finally:
        running.close()


def text_of(events: list[dict[str, object]]) -> str:
    choices = [choice for event in events for choice in event["choices"]]  # type: ignore[attr-defined]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


@pytest.mark.parametrize(
    ("image", "holds"),
    [
        ("orca-gateway", "fastapi services.gateway"),
        ("orca-scheduler", "services.scheduler"),
        ("orca-engine", "torch transformers services.engine"),
    ],
)
def test_an_image_carries_only_its_part(stack: ComposeStack, image: str, holds: str) -> None:
    assert stack.run_in_image(image, IMPORTABLE) == holds


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_runs_as_a_plain_user(stack: ComposeStack, image: str) -> None:
    assert stack.run_in_image(image, "import os; print(os.getuid())") == "10001"


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_is_confined_and_healthy(stack: ComposeStack, service: str) -> None:
    [container] = stack.containers(service)
    host = container.attrs["HostConfig"]
    assert host["ReadonlyRootfs"]
    assert host["CapDrop"] == ["ALL"]
    assert "no-new-privileges:true" in host["SecurityOpt"]
    assert container.attrs["State"]["Health"]["Status"] == "healthy"


def test_the_model_command_has_run_once_and_ended_well(stack: ComposeStack) -> None:
    [container] = stack.containers("model")
    assert (container.status, container.attrs["State"]["ExitCode"]) == ("exited", 0)


def test_a_chat_answer_is_streamed_token_by_token(stack: ComposeStack) -> None:
    events = stack.chat("What is the capital of France?")
    assert "Paris" in text_of(events)
    assert len(events) > 5
    assert events[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_second_engine_joins_a_running_stack_and_shares_the_work(stack: ComposeStack) -> None:
    assert stack.engines() == 1
    before = {container.id for service in SERVICES for container in stack.containers(service)}

    stack.compose("up", "--detach", "--no-recreate", "--scale", "engine=2", seconds=START_SECONDS)
    stack.wait_until("a second engine", lambda: stack.engines() == 2)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda i: text_of(stack.chat(f"Count from {i} to ten.")), range(8)))
    assert all(answers)
    record = stack.http.get("/v1/iterations").json()["data"]
    assert len({iteration["engine"] for iteration in record}) == 2
    after = {container.id for service in SERVICES for container in stack.containers(service)}
    assert before < after, "the containers that ran before have to be left as they were"


def test_an_answer_is_the_same_on_two_engines(stack: ComposeStack) -> None:
    with ThreadPoolExecutor(4) as pool:
        answers = set(pool.map(lambda _: text_of(stack.chat("What is the capital of France?")), range(4)))
    assert len(answers) == 1


def test_the_pool_survives_a_kill_of_its_server(stack: ComposeStack) -> None:
    [redis] = stack.containers("redis")
    redis.kill("SIGKILL")
    redis.wait()
    redis.start()
    stack.wait_until("a ready stack", lambda: stack.http.get("/readyz").status_code == 200, 120)
    assert "Paris" in text_of(stack.chat("What is the capital of France?"))


def test_a_stop_drains_and_every_service_ends_well(stack: ComposeStack) -> None:
    started = time.monotonic()
    stack.compose("stop")
    assert time.monotonic() - started < 45
    ends = {c.name: c.attrs["State"]["ExitCode"] for s in (*SERVICES, "redis") for c in stack.containers(s)}
    assert set(ends.values()) == {0}, ends
