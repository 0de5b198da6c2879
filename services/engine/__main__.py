"""Starts one engine: load, size, warm up, announce, serve, drain.

Nothing of torch may be imported before `OMP_WAIT_POLICY` is set: with OpenMP's own choice, one
other busy process on the same CPUs makes an iteration ten times slower.
"""

import logging
import os
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING

from services.engine.settings import EngineSettings
from shared.errors import OrcaError, SettingsError
from shared.observability.logging import configure

if TYPE_CHECKING:
    from services.engine.iteration import Executor
    from services.engine.loop import EngineLoop

LOG = logging.getLogger("services.engine")

EXAMPLES = """  orca engine --redis-url redis://127.0.0.1:6379/0 --served-name smollm2-135m-instruct
  orca engine --redis-url redis://redis:6379/0 --served-name my-model --model /models/my-model"""


def main(argv: list[str] | None = None) -> int:
    """Run one engine to its end; returns the exit code."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        settings = EngineSettings.load(
            sys.argv[1:] if argv is None else argv,
            prog="orca engine",
            description="Executes iterations: selective batching over a transformers model.",
            examples=EXAMPLES,
        )
        configure("engine", settings.log_level)
        _serve(settings)
    except SettingsError as error:
        sys.stderr.write(f"orca engine: {error}\n")
        return 2
    except OrcaError as error:
        sys.stderr.write(f"orca engine: {error}\n")
        return 1
    except Exception:
        LOG.critical("the engine ends: unexpected error", exc_info=True)
        return 1
    return 0


def _end_at_once(number: int, frame: FrameType | None) -> None:
    """Told to stop while still loading: nothing is held, so nothing is to be handed over."""
    os._exit(0)


def _serve(settings: EngineSettings) -> None:
    # Before torch is imported, which takes seconds: an unfit server is refused at once.
    _check_redis(settings.redis_url)

    from services.engine.heartbeat import Heartbeat
    from services.engine.loop import EngineLoop
    from services.engine.metrics import EngineMetrics
    from services.engine.model.selective_batching import PROGRESS
    from shared.channels.calls import connect
    from shared.keys import Keys
    from shared.observability.health import HealthServer
    from shared.protocol.result import EngineStatus

    executor = build_executor(settings)
    keys, metrics = Keys(settings.served_name), EngineMetrics(settings.name)

    def describe(engine_id: str) -> EngineStatus:
        return EngineStatus(
            id=engine_id,
            name=settings.name,
            n_slots=executor.kv.n_slots,
            max_model_len=min(executor.model.max_model_len, executor.kv.n_slots),
            max_batch_size=settings.max_batch_size,
        )

    heartbeat = Heartbeat(connect(settings.redis_url), keys, lambda: PROGRESS.layers)
    loop = EngineLoop(
        client=connect(settings.redis_url),
        keys=keys,
        executor=executor,
        describe=describe,
        heartbeat=heartbeat,
        metrics=metrics,
        grace=settings.grace,
    )
    _handle_signals(loop)
    if settings.metrics_port:
        HealthServer(
            settings.metrics_host,
            settings.metrics_port,
            registry=metrics.registry,
            missing=lambda: "" if loop.status else "the engine has not joined the pool",
        ).start()
    heartbeat.start()
    loop.run()


def build_executor(settings: EngineSettings) -> "Executor":
    """Load the model, size its K/V room and run it once.

    Raises:
        SettingsError: the model or the room does not do; says what to change.
    """
    import torch

    from services.engine.iteration import Executor
    from services.engine.kv_manager import KVManager
    from services.engine.model.demo import resolve_model
    from services.engine.model.load import load_model

    torch.set_num_threads(settings.threads or os.cpu_count() or 1)
    directory, _ = resolve_model(settings.model)
    model = load_model(directory, max_model_len=settings.max_model_len)
    n_slots = _slots(settings, bytes_per_slot=model.layout.bytes_per_slot, context=model.max_model_len)
    if n_slots < model.max_model_len:
        LOG.warning(
            "the context is lowered from %d to %d tokens: one engine's K/V slots hold no more",
            model.max_model_len,
            n_slots,
        )
    executor = Executor(model, KVManager(model.layout, n_slots))
    if settings.test_faults:
        from shared.faults import FaultInjector

        executor.faults = FaultInjector()
    executor.warm_up()
    return executor


def _slots(settings: EngineSettings, *, bytes_per_slot: int, context: int) -> int:
    from services.engine.memory import default_slots, free_bytes

    if settings.kv_slots is not None:
        return settings.kv_slots
    free = free_bytes()
    n_slots = default_slots(
        bytes_per_slot=bytes_per_slot,
        engines=settings.engines,
        max_batch_size=settings.max_batch_size,
        max_model_len=context,
        free=free,
    )
    if n_slots < 2:
        raise SettingsError(
            f"{free >> 20} MiB of free memory leave no K/V room; free some, run fewer engines "
            "or set --kv-slots"
        )
    return n_slots


def _check_redis(url: str) -> None:
    """Refuse an unfit server; one that is away is waited for later."""
    import redis

    from shared.channels.calls import connect
    from shared.channels.server_check import check_server_sync

    try:
        with connect(url) as client:
            check_server_sync(client)
    except redis.AuthenticationError as error:
        raise SettingsError(f"Redis refuses the credentials in --redis-url: {error}") from error
    except ValueError as error:
        raise SettingsError(f"--redis-url: {error}") from error
    except redis.RedisError as error:
        LOG.warning("Redis does not answer yet: %s", error)


def _handle_signals(loop: "EngineLoop") -> None:
    """The first signal drains; the second ends the process at once."""

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        loop.stop()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end_at_once)
    signal.signal(signal.SIGINT, _end_at_once)
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # All is handed over; taking a torch process apart would only burn seconds of processor time.
    os._exit(status)
