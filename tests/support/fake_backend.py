"""A scheduler and an engine in one small task, over the pool's real steps.

It computes nothing: each sequence gets the tokens of a script, one an iteration. Tests hold it,
step it, or let it run free.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import redis.asyncio

from shared.channels import lease, request_pool
from shared.channels.calls import AsyncPool
from shared.channels.presence import join_engine, new_id
from shared.keys import Keys
from shared.protocol.batch import BatchDescriptor, ContinuingEntry, Entry, FirstEntry
from shared.protocol.inbox import INBOX_EVENT, Ended, Submitted
from shared.protocol.request import GenerationRequest
from shared.protocol.result import (
    EngineStatus,
    IterationRecord,
    IterationResult,
    Member,
    Phase,
    SequenceOutput,
)
from shared.protocol.token import TokenEntry
from shared.protocol.wire import decode, encode

LEASE = 60.0
Script = Callable[[GenerationRequest, list[int]], Sequence[int | TokenEntry]]


@dataclass
class Running:
    """One sequence on the pretended engine."""

    request: GenerationRequest
    script: list[TokenEntry]
    index: int = 0
    started: bool = False


class FakeBackend:
    """Plays scheduler and engine for one model. A sequence with tokens goes on behind them."""

    def __init__(
        self, client: "redis.asyncio.Redis", keys: Keys, script: Script, *, eos: int, n_slots: int = 10_000
    ) -> None:
        self._client = client
        self._pool = AsyncPool(client)
        self._keys = keys
        self._script = script
        self._eos = eos
        self._status = EngineStatus(
            id=new_id("engine-0"), name="engine-0", n_slots=n_slots, max_model_len=n_slots
        )
        self._fence = ""
        self._heard = "0-0"
        self._iteration = 0
        self._stopping = False
        self.held: dict[str, Running] = {}
        self.finished: set[str] = set()
        self.go = asyncio.Event()
        """Cleared, nothing is run; submissions are still heard."""
        self.go.set()
        self.limit: int | None = None
        """Tokens that a sequence may have before the engine falls silent."""

    async def start(self) -> None:
        """Take the lead and announce the engine."""
        self._fence = await self._pool.run(lease.acquire(self._keys, token="fake", lease=LEASE))
        await self._pool.run(join_engine(self._keys, self._status, lease=LEASE))

    async def run(self) -> None:
        """Hear, run one iteration, and again, once started."""
        while not self._stopping:
            await self.hear()
            busy = self.go.is_set() and await self.iterate()
            await asyncio.sleep(0 if busy else 0.002)

    def stop(self) -> None:
        """Let `run` end after the iteration that is under way."""
        self._stopping = True

    async def hear(self) -> None:
        """Read what the inbox has."""
        reply: Any = await self._client.xrange(self._keys.inbox, min=f"({self._heard}")
        for entry_id, fields in reply:
            self._heard = entry_id.decode()
            event = decode(INBOX_EVENT, fields[b"m"])
            if isinstance(event, Submitted):
                await self._take(decode(GenerationRequest, event.request))
            elif isinstance(event, Ended):
                self.held.pop(event.id, None)

    async def _take(self, request: GenerationRequest) -> None:
        raw: Any = await self._client.get(self._keys.prompt(request.group, request.prompt_index))
        if raw is None:
            return
        import json

        script = self._script(request, json.loads(raw))
        entries = [t if isinstance(t, TokenEntry) else TokenEntry(token=t) for t in script]
        committed: Any = await self._client.llen(self._keys.tokens(request.id))
        self.held[request.id] = Running(request, entries, index=committed)

    async def iterate(self) -> bool:
        """One iteration with everything that is held; False when there is nothing to run."""
        members = [m for m in self.held.values() if self.limit is None or m.index < self.limit]
        if not members:
            return False
        self._iteration += 1
        descriptor = BatchDescriptor(
            iteration=self._iteration, fence=self._fence, entries=tuple(map(_entry, members))
        )
        refused = await self._pool.run(
            request_pool.dispatch(
                self._keys, fence=self._fence, engine_id=self._status.id, descriptor=descriptor
            )
        )
        if refused:
            for ident in refused:
                self.held.pop(ident, None)
            return True
        await self._commit(members)
        return True

    async def _commit(self, members: list[Running]) -> None:
        outputs = tuple(map(self._output, members))
        record = IterationRecord(
            number=self._iteration,
            engine=self._status.name,
            members=tuple(
                Member(id=m.request.id, phase=Phase.DECODE if m.index else Phase.PREFILL, tokens=1)
                for m in members
            ),
            kv_slots_reserved=0,
            kv_slots_used=0,
            batches_in_flight=1,
            started=time.time(),
            duration_seconds=0.001,
        )
        result = IterationResult(
            engine=self._status.id,
            iteration=self._iteration,
            outputs=outputs,
            record=encode(record).decode(),
        )
        groups = [(m.request.group, m.request.prompt_index) for m in members]
        call = request_pool.commit(self._keys, result=result, engine_name=self._status.name, groups=groups)
        accepted = await self._pool.run(call)
        for member, output in zip(members, outputs, strict=True):
            member.index += 1
            member.started = True
            if output.finish_reason or output.code or not accepted[member.request.id]:
                self.held.pop(member.request.id, None)
                self.finished.add(member.request.id)

    def _output(self, member: Running) -> SequenceOutput:
        request, index = member.request, member.index
        entry = member.script[index] if index < len(member.script) else TokenEntry(token=self._eos)
        reason = code = ""
        sampling = request.sampling
        ends = entry.token == self._eos and not sampling.ignore_eos
        if entry.token < 0:
            entry, code = TokenEntry(token=0), "engine_failed"
        elif ends or entry.token in sampling.stop_token_ids:
            reason = "stop"
        elif index + 1 == sampling.max_new_tokens:
            reason = "length"
        return SequenceOutput(
            id=request.id,
            attempt=0,
            index=index,
            token=None if code else entry.token,
            entry="" if code else encode(entry).decode(),
            finish_reason=reason,
            code=code,
            message="the engine failed on this request" if code else "",
        )


def _entry(member: Running) -> Entry:
    request = member.request
    if not member.started:
        return FirstEntry(
            id=request.id,
            attempt=0,
            group=request.group,
            prompt_index=request.prompt_index,
            tokens=(0,) * (request.n_prompt + member.index),
            n_prompt=request.n_prompt,
            reserved_slots=request.reserved_slots,
            sampling=request.sampling,
        )
    return ContinuingEntry(
        id=request.id,
        attempt=0,
        last_token=0,
        position=request.n_prompt + member.index - 1,
        index=member.index,
    )
