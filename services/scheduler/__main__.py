"""Starts one scheduler: wait for Redis, stand by, lead, stand by again, until told to stop."""

import logging
import signal
import sys
from threading import Event
from types import FrameType

import redis
from redis.exceptions import RedisError

from services.scheduler.dispatch import Dispatcher
from services.scheduler.leadership import STANDBY_SECONDS, Leadership
from services.scheduler.loop import IterationLoop
from services.scheduler.metrics import SchedulerMetrics
from services.scheduler.selection import select, select_request_level
from services.scheduler.settings import SchedulerSettings
from services.scheduler.state import SchedulerState
from shared.channels.calls import LONGEST_PAUSE, Pool, connect
from shared.channels.server_check import check_server_sync
from shared.errors import NotLeader, OrcaError, SettingsError
from shared.keys import Keys
from shared.observability.health import HealthServer
from shared.observability.logging import RateLimit, configure

LOG = logging.getLogger("services.scheduler")
EXAMPLES = """\
  python -m services.scheduler --redis-url redis://127.0.0.1:6379/0 --served-name my-model
  python -m services.scheduler --served-name my-model --scheduling request-level"""


class Scheduler:
    """One scheduler process: a hot standby that leads whenever the lead is free."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self._keys = Keys(settings.served_name)
        self._client = connect(settings.redis_url)
        self._pool = Pool(self._client)
        self._leadership = Leadership(Pool(connect(settings.redis_url)), self._keys)
        self._metrics = SchedulerMetrics()
        self._limit = RateLimit()
        self._stopping = Event()
        self._server = ""
        self._missing = "Redis has not answered yet"

    def stop(self) -> None:
        """Ask for the end; safe in a signal handler."""
        self._stopping.set()

    def run(self) -> None:
        """Serve until stopped; the lead is given up at once on the way out.

        Raises:
            SettingsError: this Redis cannot be the pool.
        """
        health = self._serve_health()
        while not self._stopping.is_set():
            try:
                self._server = check_server_sync(self._client)
                self._missing = ""
                if self._leadership.try_acquire():
                    self._lead()
                else:
                    self._stopping.wait(STANDBY_SECONDS)
            except (RedisError, OSError) as error:
                self._wait(error)
        self._leadership.stop(resign=True)
        if health is not None:
            health.close()

    def _lead(self) -> None:
        """Lead until stopped or fenced out."""
        self._metrics.leader.set(1)
        try:
            loop = self._build_loop()
            while self._leadership.leads and not self._stopping.is_set():
                try:
                    loop.run_iteration()
                except (RedisError, OSError) as error:
                    loop.pause()
                    self._wait(error)
                    if self._restarted():
                        LOG.warning("Redis was restarted: rebuilding under a new fence")
                        break
        except NotLeader as error:
            LOG.warning("leading no longer: %s", error)
        finally:
            self._metrics.leader.set(0)
            self._leadership.stop(resign=True)

    def _build_loop(self) -> IterationLoop:
        fence, settings = self._leadership.fence, self._settings
        by_request = settings.scheduling == "request-level"
        state = SchedulerState(
            max_batch_size=settings.max_batch_size,
            select=select_request_level if by_request else select,
            queue_timeout=settings.queue_timeout,
            fence=fence,
        )
        dispatcher = Dispatcher(self._pool, self._keys, fence=fence, until_done=by_request)
        loop = IterationLoop(
            self._pool, self._keys, state=state, dispatcher=dispatcher, metrics=self._metrics
        )
        loop.start()
        return loop

    def _wait(self, error: Exception) -> None:
        """Redis does not serve: say so now and then, and try again with growing pauses."""
        self._missing = f"Redis does not answer: {error}"
        if self._limit.ready("redis"):
            LOG.warning("Redis does not serve: %s; waiting", error)
        pause = 0.05
        while not self._stopping.wait(pause):
            pause = min(2 * pause, LONGEST_PAUSE)
            try:
                self._client.ping()
                self._missing = ""
                return
            except (RedisError, OSError):
                continue

    def _restarted(self) -> bool:
        try:
            return check_server_sync(self._client) != self._server
        except (RedisError, OSError):
            return True

    def _serve_health(self) -> HealthServer | None:
        if not self._settings.metrics_port:
            return None
        health = HealthServer(
            self._settings.metrics_host,
            self._settings.metrics_port,
            registry=self._metrics.registry,
            missing=lambda: self._missing,
        )
        health.start()
        return health


def main(argv: list[str] | None = None) -> int:
    """Run one scheduler to its end; returns the exit code."""
    try:
        settings = SchedulerSettings.load(
            sys.argv[1:] if argv is None else argv,
            prog="orca scheduler",
            description="Decides after every iteration who runs next.",
            examples=EXAMPLES,
        )
        configure("scheduler", settings.log_level)
        scheduler = Scheduler(settings)
        handle_signals(scheduler)
        scheduler.run()
    except SettingsError as error:
        sys.stderr.write(f"orca scheduler: {error}\n")
        return 2
    except (OrcaError, redis.RedisError, ValueError) as error:
        sys.stderr.write(f"orca scheduler: {error}\n")
        return 1
    return 0


def handle_signals(scheduler: Scheduler) -> None:
    """The first signal stops after the current decision; the second ends the process at once."""

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        scheduler.stop()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)


if __name__ == "__main__":
    sys.exit(main())
