"""The heartbeat: presence and progress, from a thread that a forward pass cannot block.

Knows one engine id at a time. It notices that the pool has forgotten the engine, or that Redis
was restarted; the main loop then joins anew. It repairs nothing itself.
"""

import logging
import os
import threading
import time
from collections.abc import Callable

import redis

from shared.channels.calls import TROUBLE, Pool
from shared.channels.presence import BEAT_SECONDS, beat_engine
from shared.errors import PresenceLost
from shared.keys import Keys
from shared.observability.logging import RateLimit

LOG = logging.getLogger(__name__)
HANG_SECONDS = 30.0
"""After its engine was lost, the main loop gets this long to show a sign of life."""
EXIT_CODE = 70


def _exit() -> None:
    """End the process from a thread: the main loop hangs and would not hear anything else."""
    os._exit(EXIT_CODE)


def run_id(client: "redis.Redis") -> str:
    """Which start of the server this is: it changes with every restart and failover."""
    return str(client.info("server")["run_id"])


class Heartbeat:
    """Beats for one engine until closed, over a connection of its own."""

    def __init__(
        self,
        client: "redis.Redis",
        keys: Keys,
        progress: Callable[[], int],
        *,
        give_up: Callable[[], None] = _exit,
    ) -> None:
        """`give_up` ends a process whose main loop hangs, so that its supervisor starts another."""
        self._pool = Pool(client)
        self._keys = keys
        self._progress = progress
        self._engine_id = ""
        self._server = ""
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._limit = RateLimit()
        self._give_up = give_up
        self._hung: tuple[int, float] | None = None
        """Progress when the engine was found lost, and since when it stands there."""
        self.lost = threading.Event()
        """Set when the engine must join under a new id."""
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop beating; waits for a beat under way."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(15)

    def beat_for(self, engine_id: str, server: str) -> None:
        """From now on beat for this id, which joined on this start of the server."""
        with self._lock:
            self._engine_id, self._server = engine_id, server
            self.lost.clear()

    def _run(self) -> None:
        while not self._closed.wait(BEAT_SECONDS):
            try:
                self.beat()
                self.watch(time.monotonic())
            except TROUBLE as error:
                if self._limit.ready("redis"):
                    LOG.warning("no heartbeat: Redis does not answer (%s)", error)
            except redis.RedisError as error:
                if self._limit.ready("refused"):
                    LOG.warning("heartbeat refused: %s", error)
            except Exception:
                # A heart that stops for a fault of its own would make a healthy engine a lost one.
                LOG.exception("heartbeat failed")

    def watch(self, now: float) -> None:
        """Give up where a lost engine's main loop neither joins anew nor computes; `now` is monotonic."""
        if not self.lost.is_set():
            self._hung = None
        elif self._hung is None or self._hung[0] != self._progress():
            self._hung = self._progress(), now
        elif now - self._hung[1] >= HANG_SECONDS:
            LOG.critical("this engine was lost and its main loop hangs: the process ends")
            self._give_up()

    def beat(self) -> None:
        """One beat; sets `lost` instead of raising when the pool has forgotten the engine."""
        with self._lock:
            engine_id, server = self._engine_id, self._server
        if not engine_id or self.lost.is_set():
            return
        lost = run_id(self._pool.client) != server
        if not lost:
            try:
                self._pool.run(beat_engine(self._keys, engine_id, self._progress()))
            except PresenceLost:
                lost = True
        with self._lock:
            if lost and engine_id == self._engine_id:
                self.lost.set()
