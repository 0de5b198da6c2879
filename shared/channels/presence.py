"""Engines and gateways announce themselves; presence lapses by itself.

Join, beat, leave and report are one script each. A beat only refreshes lifetimes, so it works
on a full server; one that finds its presence gone raises and the process joins under a new id.
"""

import secrets
from typing import Any

from shared.channels.calls import Call
from shared.errors import NotLeader, PresenceLost
from shared.keys import Keys
from shared.protocol.result import EngineReport, EngineStatus, GatewayStatus
from shared.protocol.wire import encode

LEASE_SECONDS = 5.0
"""How long a silent engine or gateway counts as present."""
BEAT_SECONDS = 1.0


def new_id(name: str) -> str:
    """A process's id: its stable name and a start token that no other start has."""
    return f"{name}.{secrets.token_hex(4)}"


def name_of(process_id: str) -> str:
    """The stable name within a process's id."""
    return process_id.rpartition(".")[0]


def _present(reply: Any) -> None:
    if not reply:
        raise PresenceLost("the pool has forgotten this process")


def join_engine(keys: Keys, status: EngineStatus, lease: float = LEASE_SECONDS) -> Call[int]:
    """Announce an engine: presence, index, an empty batch stream and an inbox event.

    Returns the number that its iterations continue from; they count per stable name.
    """
    presence = (keys.engines, keys.engine(status.id), keys.batches(status.id))
    return Call(
        "join_engine",
        (*presence, keys.inbox, keys.progress, keys.totals),
        (status.id, encode(status), int(lease * 1000), status.name),
        int,
    )


def beat_engine(keys: Keys, engine_id: str, progress: int, lease: float = LEASE_SECONDS) -> Call[None]:
    """Refresh an engine's presence and say how far it has computed.

    Raises:
        PresenceLost: the pool has forgotten this engine.
    """
    return Call(
        "beat_engine",
        (keys.engine(engine_id), keys.batches(engine_id), keys.progress),
        (engine_id, progress, int(lease * 1000)),
        _present,
    )


def drain_engine(keys: Keys, status: EngineStatus) -> Call[None]:
    """Mark an engine as draining: no new sequences; the scheduler takes the others back.

    `status` has `draining` set.

    Raises:
        PresenceLost: the pool has forgotten this engine.
    """
    return Call("drain_engine", (keys.engine(status.id), keys.inbox), (status.id, encode(status)), _present)


def leave_engine(keys: Keys, engine_id: str, fence: str = "") -> Call[None]:
    """Forget an engine: by itself when it stops, or by the scheduler (with a fence) when lost.

    Raises:
        NotLeader: a fence was given and is not the pool's.
    """

    def parse(reply: Any) -> None:
        if reply == b"FENCED":
            raise NotLeader("another scheduler leads")

    return Call(
        "leave_engine",
        (
            keys.leader,
            keys.engines,
            keys.engine(engine_id),
            keys.batches(engine_id),
            keys.committed(engine_id),
            keys.inbox,
            keys.progress,
            keys.gauges,
        ),
        (engine_id, fence, name_of(engine_id)),
        parse,
    )


def ask_report(keys: Keys, engine_id: str, fence: str) -> Call[int]:
    """Ask an engine what it holds, after every descriptor that was dispatched before.

    Returns the question's iteration number; the next iteration has the number after it.

    Raises:
        NotLeader: the fence is not the pool's.
        LookupError: the engine is gone.
    """

    def parse(reply: Any) -> int:
        if reply == b"FENCED":
            raise NotLeader("another scheduler leads")
        if reply == b"GONE":
            raise LookupError(engine_id)
        return int(reply)

    return Call("ask_report", (keys.leader, keys.batches(engine_id)), (fence,), parse)


def report_engine(keys: Keys, report: EngineReport) -> Call[None]:
    """Answer a leader's question through the inbox.

    Raises:
        PresenceLost: the pool has forgotten this engine.
    """
    return Call(
        "report_engine",
        (keys.engine(report.status.id), keys.inbox),
        (report.status.id, encode(report)),
        _present,
    )


def join_gateway(keys: Keys, status: GatewayStatus, lease: float = LEASE_SECONDS) -> Call[None]:
    """Announce a gateway: presence and index."""
    return Call(
        "join_gateway",
        (keys.gateways, keys.gateway(status.id)),
        (status.id, encode(status), int(lease * 1000)),
        lambda _: None,
    )


def beat_gateway(keys: Keys, gateway_id: str, lease: float = LEASE_SECONDS) -> Call[None]:
    """Refresh a gateway's presence.

    Raises:
        PresenceLost: the pool has forgotten this gateway.
    """
    return Call("beat_gateway", (keys.gateway(gateway_id),), (int(lease * 1000),), _present)


def leave_gateway(keys: Keys, gateway_id: str) -> Call[None]:
    """Forget a gateway that stops."""
    return Call("leave_gateway", (keys.gateways, keys.gateway(gateway_id)), (gateway_id,), lambda _: None)
