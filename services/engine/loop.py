"""The engine's main loop: receive a descriptor, execute it, commit its result. Nothing else.

Knows the pool's steps and no tensors. While Redis is away it waits and keeps its K/V; when the
pool has forgotten it, or Redis was restarted, it drops every sequence and joins under a new id.
"""

import logging
import math
import time
from collections.abc import Callable
from typing import TypeVar

import redis
from redis.exceptions import OutOfMemoryError, RedisError, ResponseError

from services.engine.heartbeat import Heartbeat, run_id
from services.engine.iteration import Executed, Executor
from services.engine.metrics import EngineMetrics
from services.engine.model.selective_batching import PROGRESS
from services.engine.request_level import execute_until_done
from shared.channels import batches, presence
from shared.channels.calls import FIRST_PAUSE, LONGEST_PAUSE, TROUBLE, Call, Pool
from shared.channels.request_pool import commit
from shared.errors import PresenceLost
from shared.keys import Keys
from shared.observability.logging import RateLimit
from shared.protocol.batch import BatchDescriptor
from shared.protocol.result import EngineReport, EngineStatus, IterationRecord, IterationResult
from shared.protocol.wire import encode

LOG = logging.getLogger(__name__)
T = TypeVar("T")

BLOCK_SECONDS = 1.0
"""How long one wait for a descriptor lasts, and so how soon a stop or a lost presence is seen."""


class _OutOfGrace(Exception):
    """A stop was asked for and its grace is over while Redis is away."""


class EngineLoop:
    """One engine between the pool and its executor."""

    def __init__(
        self,
        *,
        client: "redis.Redis",
        keys: Keys,
        executor: Executor,
        describe: Callable[[str], EngineStatus],
        heartbeat: Heartbeat,
        metrics: EngineMetrics,
        grace: float,
    ) -> None:
        """`describe` gives this engine's status under an id; `grace` bounds the drain, in seconds."""
        self._client = client
        self._pool = Pool(client)
        self._keys = keys
        self._executor = executor
        self._describe = describe
        self._heartbeat = heartbeat
        self._metrics = metrics
        self._grace = grace
        self._stop_by = math.inf
        self._draining = False
        self._server = ""
        self._last = 0
        self._last_end = time.monotonic()
        self._limit = RateLimit()
        self.status: EngineStatus | None = None
        """This engine's presence; None before it has joined."""

    def stop(self) -> None:
        """Ask for a drain; safe in a signal handler."""
        self._stop_by = min(self._stop_by, time.monotonic() + self._grace)

    def run(self) -> None:
        """Serve until a stop has been asked for and everything is handed over or out of time."""
        try:
            self._join()
            while not self._drained():
                self._turn()
        except _OutOfGrace:
            LOG.warning("Redis is away and the grace is over: leaving without a word")
            return
        self._leave()

    def _turn(self) -> None:
        """Receive, execute, commit."""
        try:
            descriptor = self._receive()
            if descriptor is None:
                return
            if descriptor.report:
                self._report(descriptor)
            else:
                self._run_iteration(descriptor)
            self._last = descriptor.iteration
        except PresenceLost as lost:
            LOG.warning("%s: dropping all sequences and joining under a new id", lost)
            self._executor.drop_all()
            # One that is about to stop holds nothing now and need not come back.
            if self._stop_by == math.inf:
                self._join()
            else:
                self._stop_by = time.monotonic()

    def _join(self) -> None:
        """Appear in the pool under a new id, with nothing held."""
        self._executor.drop_all()
        status = self._describe(presence.new_id(self._describe("").name))
        while True:
            try:
                self._server = run_id(self._client)
                self._last = self._pool.run(presence.join_engine(self._keys, status))
                break
            except RedisError as error:
                self._wait_for_redis(error, same_server=False)
        self.status = status
        self._heartbeat.beat_for(status.id, self._server)
        self._metrics.observe_kv(self._executor.kv)
        LOG.info("joined with %d K/V slots", status.n_slots, extra={"engine_id": status.id})

    def _receive(self) -> BatchDescriptor | None:
        if self._heartbeat.lost.is_set():
            raise PresenceLost("the pool has forgotten this engine")
        if self._stop_by < math.inf and not self._draining:
            self._drain()
        try:
            return batches.receive(
                self._client, self._keys, engine_id=self._id, after=self._last, block=BLOCK_SECONDS
            )
        except RedisError as error:
            self._wait_for_redis(error)
            return None

    def _run_iteration(self, descriptor: BatchDescriptor) -> None:
        """Execute, and write the result to the pool however long that takes."""
        started, start = time.time(), time.monotonic()
        executed, n_passes = self._execute(descriptor)
        end = time.monotonic()
        if executed.outputs:
            self._metrics.observe_iteration(executed, duration=end - start, since_last=end - self._last_end)
            self._last_end = end
        self._metrics.observe_kv(self._executor.kv)
        record = self._record(descriptor, executed, started=started, duration=end - start)
        record = record.model_copy(update={"forward_passes": n_passes})
        result = IterationResult(
            engine=self._id,
            iteration=descriptor.iteration,
            outputs=executed.outputs,
            record=encode(record).decode(),
        )
        name = record.engine
        self._metrics.observe_commit(
            self._patiently(commit(self._keys, result=result, engine_name=name, groups=executed.groups))
        )

    def _execute(self, descriptor: BatchDescriptor) -> tuple[Executed, int]:
        if descriptor.until_done:
            return execute_until_done(self._executor, descriptor)
        return self._executor.execute_iteration(descriptor), 1

    def _record(
        self, descriptor: BatchDescriptor, executed: Executed, *, started: float, duration: float
    ) -> IterationRecord:
        return IterationRecord(
            number=descriptor.iteration,
            engine=presence.name_of(self._id),
            members=executed.members,
            kv_slots_reserved=descriptor.n_reserved,
            kv_slots_used=self._executor.kv.n_used,
            batches_in_flight=descriptor.batches_in_flight,
            started=started,
            duration_seconds=duration,
            waiting=descriptor.waiting,
            waiting_total=descriptor.waiting_total,
            heard=descriptor.heard,
        )

    def _report(self, descriptor: BatchDescriptor) -> None:
        """Answer a new leader: what is held, after all that was dispatched before the question."""
        assert self.status is not None, "joined before anything else"
        report = EngineReport(
            fence=descriptor.fence,
            status=self.status,
            last_iteration=self._last,
            held=self._executor.held(),
        )
        self._patiently(presence.report_engine(self._keys, report))

    def _drain(self) -> None:
        """Tell the scheduler that this engine wants to hand over what it holds."""
        assert self.status is not None, "joined before anything else"
        self.status = self.status.model_copy(update={"draining": True})
        self._draining = True
        LOG.info("draining %d sequences", self._executor.n_unfinished, extra={"engine_id": self._id})
        self._patiently(presence.drain_engine(self._keys, self.status))

    def _drained(self) -> bool:
        if self._stop_by == math.inf:
            return False
        return time.monotonic() >= self._stop_by or (self._draining and not self._executor.n_unfinished)

    def _leave(self) -> None:
        self._heartbeat.close()
        try:
            self._pool.run(presence.leave_engine(self._keys, self._id), patience=1.0)
        except RedisError as error:
            LOG.warning("left without a word: %s", error)

    @property
    def _id(self) -> str:
        assert self.status is not None, "joined before anything else"
        return self.status.id

    def _patiently(self, call: Call[T]) -> T:
        """Run a step, again and again while Redis is away or full; the K/V is kept meanwhile.

        Raises:
            PresenceLost: Redis was restarted meanwhile.
        """
        while True:
            try:
                return self._pool.run(call)
            except RedisError as error:
                self._wait_for_redis(error)

    def _wait_for_redis(self, error: RedisError, *, same_server: bool = True) -> None:
        """Return when Redis answers again.

        Raises:
            PresenceLost: it was restarted: what it knows may be older than what is held here.
            RedisError: `error` is none that waiting cures.
        """
        if not _passes(error):
            raise error
        if self._limit.ready("redis"):
            LOG.warning("Redis does not serve: %s; waiting", error)
        pause = FIRST_PAUSE
        while True:
            if time.monotonic() >= self._stop_by:
                raise _OutOfGrace
            time.sleep(pause)
            PROGRESS.layers += 1  # waiting for Redis is no standing still
            pause = min(2 * pause, LONGEST_PAUSE)
            try:
                server = run_id(self._client)
            except TROUBLE:
                continue
            if same_server and server != self._server:
                raise PresenceLost("Redis was restarted")
            return


def _passes(error: RedisError) -> bool:
    """Whether waiting may cure it: away, loading, full, or its disk refuses."""
    if isinstance(error, (*TROUBLE, OutOfMemoryError)):
        return True
    return isinstance(error, ResponseError) and str(error).startswith(("OOM", "MISCONF", "CLUSTERDOWN"))
