"""A real pool with scheduler loops and scripted engines around it, one step at a time."""

import json
from typing import Any

import redis

from services.scheduler.dispatch import Dispatcher
from services.scheduler.loop import IterationLoop
from services.scheduler.metrics import SchedulerMetrics
from services.scheduler.state import SchedulerState
from shared.channels import batches, lease, presence, request_pool
from shared.channels.calls import Call, Pool
from shared.channels.request_pool import Record
from shared.keys import Keys
from shared.protocol.batch import BatchDescriptor, FirstEntry
from shared.protocol.request import GenerationRequest
from shared.protocol.result import (
    EngineReport,
    EngineStatus,
    HeldSequence,
    IterationResult,
    SequenceOutput,
)
from shared.protocol.token import State, TokenEntry
from shared.protocol.wire import encode
from tests.support.scripted_engine import make_request

FIRST_TOKEN = 100
"""The token with index i is FIRST_TOKEN + i, on whichever engine."""


class PoolEngine:
    """An engine without a model: it takes descriptors, holds K/V lengths and commits."""

    def __init__(self, pool: Pool, keys: Keys, name: str, n_slots: int) -> None:
        self.pool, self.keys = pool, keys
        self.status = EngineStatus(
            id=presence.new_id(name), name=name, n_slots=n_slots, max_model_len=n_slots
        )
        self.kv: dict[str, HeldSequence] = {}
        self.limits: dict[str, int] = {}
        self.seen: list[BatchDescriptor] = []
        """Descriptors with entries or releases."""
        self.last: int = pool.run(presence.join_engine(keys, self.status))

    @property
    def id(self) -> str:
        return self.status.id

    def step(self, *, commit: bool = True) -> BatchDescriptor | None:
        """Take and run the next descriptor, if there is one."""
        found = batches.receive(self.pool.client, self.keys, engine_id=self.id, after=self.last, block=0)
        if found is None:
            return None
        self.last = found.iteration
        if found.report:
            held = tuple(self.kv.values())
            report = EngineReport(fence=found.fence, status=self.status, last_iteration=self.last, held=held)
            self.pool.run(presence.report_engine(self.keys, report))
            return found
        self.seen.append(found)
        for released in found.releases:
            self.kv.pop(released, None)
        if commit:
            self.commit(found)
        return found

    def commit(self, descriptor: BatchDescriptor) -> dict[str, bool]:
        """Run a descriptor's entries and write their tokens."""
        outputs = tuple(self._run(entry) for entry in descriptor.entries)
        result = IterationResult(
            engine=self.id, iteration=descriptor.iteration, outputs=outputs, record='{"r":1}'
        )
        groups = [(output.id, 0) for output in outputs]
        call = request_pool.commit(self.keys, result=result, engine_name=self.status.name, groups=groups)
        return self.pool.run(call)

    def _run(self, entry: Any) -> SequenceOutput:
        if isinstance(entry, FirstEntry):
            n_kv, reserved = len(entry.tokens), entry.reserved_slots
            self.limits[entry.id] = entry.sampling.max_new_tokens
        else:
            known = self.kv[entry.id]
            assert known.n_kv == entry.position
            n_kv, reserved = known.n_kv + 1, known.reserved_slots
        self.kv[entry.id] = HeldSequence(
            id=entry.id, attempt=entry.attempt, n_kv=n_kv, reserved_slots=reserved
        )
        token = FIRST_TOKEN + entry.index
        return SequenceOutput(
            id=entry.id,
            attempt=entry.attempt,
            index=entry.index,
            token=token,
            entry=encode(TokenEntry(token=token)).decode(),
            finish_reason="length" if entry.index + 1 == self.limits[entry.id] else "",
        )


class World:
    """One pool, its leader and its engines."""

    def __init__(self, client: "redis.Redis", keys: Keys) -> None:
        self.client, self.keys, self.pool = client, keys, Pool(client)
        self.engines: list[PoolEngine] = []
        self.loop = self.lead("first")

    def lead(self, token: str) -> IterationLoop:
        """Take the free lead."""
        self.fence = self.run(lease.acquire(self.keys, token=token))
        assert self.fence, "the lead is free"
        self.state = SchedulerState(fence=self.fence, max_batch_size=4)
        self.metrics = SchedulerMetrics()
        self.loop = IterationLoop(
            self.pool,
            self.keys,
            state=self.state,
            dispatcher=Dispatcher(self.pool, self.keys, fence=self.fence),
            metrics=self.metrics,
        )
        self.loop.start()
        return self.loop

    def take_over(self) -> IterationLoop:
        """Another scheduler leads after this one's lease has gone."""
        self.run(lease.resign(self.keys, fence=self.fence))
        return self.lead("second")

    def run(self, call: Call[Any]) -> Any:
        return self.pool.run(call)

    def join(self, name: str, n_slots: int = 100) -> PoolEngine:
        """An engine joins and answers the leader's question."""
        engine = PoolEngine(self.pool, self.keys, name, n_slots)
        self.engines.append(engine)
        self.loop.run_iteration()
        engine.step()
        return engine

    def submit(self, name: str, n_prompt: int = 3, generated: int = 3, **changes: Any) -> GenerationRequest:
        request = make_request(name, n_prompt, generated, **changes)
        call = request_pool.submit(
            self.keys,
            requests=[request],
            prompts=[list(range(n_prompt))],
            gateway_id="g.1",
            max_queue=100,
            record_ttl=600,
        )
        assert self.run(call).outcome == "accepted"
        return request

    def end(self, request: GenerationRequest) -> None:
        self.run(request_pool.end(self.keys, request=request, outcome=State.CANCELLED))

    def turn(self, n: int = 1) -> None:
        """The scheduler decides, then each engine runs what it got; n times."""
        for _ in range(n):
            self.poke()
            self.loop.run_iteration()
            for engine in self.engines:
                engine.step()

    def poke(self) -> None:
        """An event that means nothing, so that no turn waits for the next tick."""
        message = b'{"version":1,"kind":"end","id":"nobody"}'
        self.client.xadd(self.keys.inbox, {"m": message})

    def record(self, request: GenerationRequest) -> Record:
        call = request_pool.attach(self.keys, sequence_id=request.id, group=request.group, gateway_id="")
        return self.run(call).record  # type: ignore[no-any-return]

    def log(self, request: GenerationRequest) -> list[int]:
        """The tokens of a sequence's log."""
        entries: Any = self.client.lrange(self.keys.tokens(request.id), 0, -1)
        return [json.loads(entry)["token"] for entry in entries]
