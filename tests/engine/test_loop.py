"""The engine's loop against a real pool: join, run what is dispatched, commit, survive, hand over."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
import redis

from services.engine import heartbeat as heartbeat_module
from services.engine import loop as loop_module
from services.engine.heartbeat import Heartbeat
from services.engine.iteration import Executor
from services.engine.kv_manager import KVManager
from services.engine.loop import EngineLoop
from services.engine.metrics import EngineMetrics
from services.engine.model.load import LoadedModel
from services.engine.model.selective_batching import PROGRESS
from shared.channels import inbox, lease, presence, request_pool
from shared.channels.calls import Pool, connect
from shared.faults import FaultInjector
from shared.keys import Keys
from shared.protocol.batch import BatchDescriptor, ContinuingEntry, FirstEntry
from shared.protocol.inbox import EngineDraining, EngineJoined, EngineLeft, InboxEvent, Reported, Returned
from shared.protocol.request import GenerationRequest, Rendering
from shared.protocol.result import EngineReport, EngineStatus, IterationRecord
from shared.protocol.token import State, TokenEntry
from shared.protocol.wire import decode
from tests.support.engine_driver import alone, sampling

E = TypeVar("E", bound=InboxEvent)
PROMPT = (11, 12, 13)
WAIT = 90.0


@dataclass
class Leader:
    """The scheduler's side: holds the lead, hears the inbox, dispatches what a test says."""

    client: "redis.Redis"
    keys: Keys
    fence: str = ""
    heard: list[InboxEvent] = field(default_factory=list)
    engine: str = ""
    number: int = 0
    _after: str = "0-0"

    def __post_init__(self) -> None:
        self.pool = Pool(self.client)
        self.fence = self.pool.run(lease.acquire(self.keys, token="test", lease=600))

    def wait_for(self, kind: type[E], count: int = 1) -> E:
        """The count-th event of a kind since the test began."""
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            found = [event for event in self.heard if isinstance(event, kind)]
            if len(found) >= count:
                return found[count - 1]
            self._after, events = inbox.read(self.client, self.keys, after=self._after, block=0.2)
            self.heard += events
        raise AssertionError(f"no {kind.__name__} in {self.heard}")

    def joined(self, count: int = 1) -> EngineStatus:
        status = self.wait_for(EngineJoined, count).status
        self.engine = status.id
        return status

    def submit(self, name: str, max_new_tokens: int = 3, fault: str = "") -> GenerationRequest:
        request = GenerationRequest(
            id=name,
            group=name,
            n_prompt=len(PROMPT),
            sampling=sampling(max_new_tokens),
            rendering=Rendering(route="completions", created=0),
            fault=fault,
        )
        self.pool.run(
            request_pool.submit(
                self.keys, requests=[request], prompts=[PROMPT], gateway_id="g", max_queue=9, record_ttl=60
            )
        )
        return request

    def first(self, request: GenerationRequest) -> FirstEntry:
        return FirstEntry(
            id=request.id,
            attempt=self.record(request.id).attempt,
            group=request.group,
            tokens=PROMPT,
            n_prompt=len(PROMPT),
            reserved_slots=request.reserved_slots,
            sampling=request.sampling,
            fault=request.fault,
        )

    def dispatch(self, *entries: Any, releases: tuple[str, ...] = ()) -> Returned:
        """Send one iteration and wait for its result."""
        before = sum(isinstance(event, Returned) for event in self.heard)
        self.send(*entries, releases=releases)
        return self.wait_for(Returned, before + 1)

    def send(self, *entries: Any, releases: tuple[str, ...] = ()) -> None:
        self.number += 1
        descriptor = BatchDescriptor(
            iteration=self.number, fence=self.fence, releases=releases, entries=entries, n_reserved=6
        )
        call = request_pool.dispatch(
            self.keys, fence=self.fence, engine_id=self.engine, descriptor=descriptor
        )
        assert self.pool.run(call) == ()

    def record(self, name: str) -> request_pool.Record:
        attached = self.attached(name)
        return attached.record

    def attached(self, name: str) -> request_pool.Attached:
        attached = self.pool.run(request_pool.attach(self.keys, sequence_id=name, group=name, gateway_id=""))
        assert attached is not None
        return attached

    def tokens(self, name: str) -> list[int]:
        return [decode(TokenEntry, entry).token for entry in self.attached(name).entries]


def following(entry: FirstEntry, tokens: list[int]) -> ContinuingEntry:
    return ContinuingEntry(
        id=entry.id,
        attempt=entry.attempt,
        last_token=tokens[-1],
        position=entry.n_prompt + len(tokens) - 1,
        index=len(tokens),
    )


class Engine:
    """A loop in a thread, as `__main__` would wire it."""

    def __init__(self, url: str, keys: Keys, model: LoadedModel, *, grace: float = 20.0) -> None:
        self.client = connect(url)
        self.executor = Executor(model, KVManager(model.layout, 1000), FaultInjector())
        self.metrics = EngineMetrics("engine-0")
        self.beats = connect(url)
        self.heartbeat = Heartbeat(self.beats, keys, lambda: PROGRESS.layers)
        self.loop = EngineLoop(
            client=self.client,
            keys=keys,
            executor=self.executor,
            describe=lambda engine_id: EngineStatus(
                id=engine_id, name="engine-0", n_slots=1000, max_model_len=512
            ),
            heartbeat=self.heartbeat,
            metrics=self.metrics,
            grace=grace,
        )
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.loop.run()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.failure = error

    def start(self) -> None:
        self.heartbeat.start()
        self.thread.start()

    def close(self) -> None:
        self.loop.stop()
        self.loop.stop()
        self.loop._stop_by = 0.0
        self.thread.join(WAIT)
        self.heartbeat.close()
        self.client.close()
        self.beats.close()
        assert not self.thread.is_alive()
        assert self.failure is None


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "BLOCK_SECONDS", 0.05)
    monkeypatch.setattr(heartbeat_module, "BEAT_SECONDS", 0.05)


@pytest.fixture
def leader(redis_client: "redis.Redis", keys: Keys) -> Leader:
    return Leader(redis_client, keys)


@pytest.fixture
def engine(leader: Leader, redis_url: str, keys: Keys, llama: LoadedModel) -> Iterator[Engine]:
    engine = Engine(redis_url, keys, llama)
    engine.start()
    leader.joined()
    yield engine
    engine.close()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end, "it never came to pass"
        time.sleep(0.01)


@pytest.mark.usefixtures("engine")
def test_what_is_dispatched_is_run_and_committed(leader: Leader, llama: LoadedModel) -> None:
    request = leader.submit("r1")
    entry = leader.first(request)

    leader.dispatch(entry)
    leader.dispatch(following(entry, leader.tokens("r1")))
    last = leader.dispatch(following(entry, leader.tokens("r1")))

    assert leader.tokens("r1") == alone(llama, PROMPT, sampling(3)).output
    record = leader.record("r1")
    assert (record.state, record.finish_reason) == (State.COMPLETED, "length")
    (output,) = last.outputs
    assert (last.iteration, output.accepted, output.ended, output.index) == (3, True, True, 2)


@pytest.mark.usefixtures("engine")
def test_each_iteration_leaves_its_record(leader: Leader, keys: Keys) -> None:
    leader.dispatch(leader.first(leader.submit("r1")))

    entries: Any = leader.client.xrange(keys.iterations("engine-0"))
    ((_, fields),) = entries
    record = decode(IterationRecord, fields[b"m"])
    assert (record.number, record.engine) == (1, "engine-0")
    assert [(m.id, m.phase.value, m.tokens) for m in record.members] == [("r1", "prefill", 3)]
    assert (record.kv_slots_reserved, record.kv_slots_used) == (6, 3)
    assert record.duration_seconds > 0


def test_releases_alone_are_answered_and_free_the_kv(leader: Leader, engine: Engine) -> None:
    leader.dispatch(leader.first(leader.submit("r1")))
    assert engine.executor.kv.n_used == 3

    returned = leader.dispatch(releases=("r1",))

    assert returned.outputs == ()
    assert engine.executor.kv.n_reserved == 0


def test_a_report_names_what_is_held_and_the_questions_fence(leader: Leader, engine: Engine) -> None:
    leader.dispatch(leader.first(leader.submit("r1")))

    leader.pool.run(presence.ask_report(leader.keys, leader.engine, leader.fence))
    report = decode(EngineReport, leader.wait_for(Reported).report)

    assert (report.fence, report.last_iteration, report.status) == (leader.fence, 1, engine.loop.status)
    assert [(held.id, held.n_kv, held.reserved_slots) for held in report.held] == [("r1", 3, 6)]
    leader.number += 1
    assert leader.dispatch(releases=("r1",)).iteration == 3


@pytest.mark.usefixtures("engine")
def test_a_token_of_a_cancelled_sequence_is_refused_and_the_engine_goes_on(leader: Leader) -> None:
    request = leader.submit("r1")
    entry = leader.first(request)
    leader.dispatch(entry)
    other = leader.first(leader.submit("r2"))
    leader.send(
        following(entry, leader.tokens("r1")), other.model_copy(update={"fault": "prefill=sleep:0.3"})
    )
    leader.pool.run(request_pool.end(leader.keys, request=request, outcome=State.CANCELLED))

    returned = leader.wait_for(Returned, 2)

    assert [(output.id, output.accepted) for output in returned.outputs] == [("r1", False), ("r2", True)]
    assert len(leader.tokens("r1")) == 1
    assert len(leader.tokens("r2")) == 1


def test_a_forgotten_engine_joins_under_a_new_id_and_holds_nothing(leader: Leader, engine: Engine) -> None:
    leader.dispatch(leader.first(leader.submit("r1")))
    old = leader.engine

    leader.client.delete(leader.keys.engine(old))

    assert leader.joined(2).id != old
    assert engine.executor.held() == ()
    request = leader.submit("r2")
    assert leader.dispatch(leader.first(request)).outputs[0].accepted


def test_cut_connections_cost_nothing(leader: Leader, engine: Engine) -> None:
    entry = leader.first(leader.submit("r1"))
    leader.dispatch(entry)

    leader.client.client_kill_filter(_type="normal", skipme=True)
    leader.dispatch(following(entry, leader.tokens("r1")))

    assert engine.executor.kv.n_used == 4
    assert len([event for event in leader.heard if isinstance(event, EngineJoined)]) == 1


def test_a_full_server_delays_the_commit_and_loses_nothing(leader: Leader, engine: Engine) -> None:
    entry = leader.first(leader.submit("r1"))
    leader.send(entry.model_copy(update={"fault": "prefill=sleep:0.5"}))
    leader.client.config_set("maxmemory", 1)
    try:
        until(lambda: engine.executor.kv.n_used == 3)
        time.sleep(0.3)
        assert leader.client.llen(leader.keys.tokens("r1")) == 0
    finally:
        leader.client.config_set("maxmemory", 0)

    assert leader.wait_for(Returned).outputs[0].accepted
    assert len(leader.tokens("r1")) == 1


def test_a_restarted_server_means_a_new_id(
    leader: Leader, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader.dispatch(leader.first(leader.submit("r1")))
    old = leader.engine

    for module in (loop_module, heartbeat_module):
        monkeypatch.setattr(module, "run_id", lambda _: "another start")

    assert leader.joined(2).id != old
    assert engine.executor.held() == ()


def test_a_stop_drains_hands_over_and_leaves(leader: Leader, engine: Engine) -> None:
    leader.dispatch(leader.first(leader.submit("r1")))

    engine.loop.stop()
    assert leader.wait_for(EngineDraining).engine == leader.engine
    assert engine.thread.is_alive()
    leader.send(releases=("r1",))

    assert leader.wait_for(EngineLeft).engine == leader.engine
    engine.thread.join(WAIT)
    assert not engine.thread.is_alive()
    assert not leader.client.exists(leader.keys.engine(leader.engine))


def test_a_stop_without_work_leaves_at_once(leader: Leader, engine: Engine) -> None:
    engine.loop.stop()
    assert leader.wait_for(EngineLeft).engine == leader.engine


def test_a_drain_that_nobody_answers_ends_with_its_grace(
    leader: Leader, redis_url: str, keys: Keys, llama: LoadedModel
) -> None:
    engine = Engine(redis_url, keys, llama, grace=0.3)
    engine.start()
    leader.joined()
    leader.dispatch(leader.first(leader.submit("r1")))

    engine.loop.stop()

    assert leader.wait_for(EngineLeft).engine == leader.engine
    engine.close()


@pytest.mark.usefixtures("engine")
def test_the_heartbeat_goes_on_and_carries_progress_while_an_iteration_runs(leader: Leader) -> None:
    entry = leader.first(leader.submit("r1", fault="prefill=sleep:0.6"))
    leader.send(entry)
    key = leader.keys.engine(leader.engine)

    leader.client.pexpire(key, 200)
    time.sleep(0.4)

    assert leader.client.exists(key)
    leader.wait_for(Returned)
    until(lambda: int(leader.client.hget(leader.keys.progress, leader.engine) or 0) == PROGRESS.layers)


def test_an_unreadable_descriptor_is_buried_and_the_engine_goes_on(leader: Leader, engine: Engine) -> None:
    leader.number += 1
    leader.client.xadd(leader.keys.batches(leader.engine), {"m": b"{"}, id=f"{leader.number}-0")

    assert leader.dispatch(leader.first(leader.submit("r1"))).outputs[0].accepted
    assert leader.client.xlen(leader.keys.dead_letters) == 1


def test_an_unexpected_error_ends_the_loop(
    leader: Leader, redis_url: str, keys: Keys, llama: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(redis_url, keys, llama)
    monkeypatch.setattr(engine.loop, "_record", lambda *_, **__: 1 / 0)
    engine.start()
    leader.joined()

    leader.send(leader.first(leader.submit("r1")))

    engine.thread.join(WAIT)
    assert isinstance(engine.failure, ZeroDivisionError)
    engine.failure = None
    engine.close()


def test_metrics_follow_the_iterations(leader: Leader, engine: Engine) -> None:
    leader.dispatch(leader.first(leader.submit("r1")))
    value = engine.metrics.registry.get_sample_value
    until(lambda: value("orca_generated_tokens_total") == 1)
    mine = {"engine": "engine-0"}
    assert value("orca_iterations_total", mine) == 1
    assert value("orca_iteration_duration_seconds_count", mine | {"phase": "prefill"}) == 1
    assert value("orca_batch_tokens_sum") == 3
    assert value("orca_kv_slots", mine) == 1000
    assert value("orca_kv_slots_reserved", mine) == 6
    assert value("orca_kv_slots_used", mine) == 3
