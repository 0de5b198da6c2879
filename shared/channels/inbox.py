"""The scheduler's inbox: one stream, read in order by the leader alone.

At least once: a new leader starts at the end and reads the records instead, and every event may
be repeated. Trimmed only behind what the leader has read. Unreadable entries go to the dead
letters and are counted; they never stop the reader.
"""

from typing import Any

import redis

from shared.channels.calls import Call
from shared.errors import DecodeError, NotLeader
from shared.keys import Keys
from shared.protocol.inbox import INBOX_EVENT, InboxEvent
from shared.protocol.wire import decode

READ_LIMIT = 512
DEAD_LETTER_LIMIT = 1_000


def last_entry(client: "redis.Redis", keys: Keys) -> str:
    """The id of the newest entry ever added, or 0-0: where a new leader begins."""
    try:
        info: Any = client.xinfo_stream(keys.inbox)
    except redis.ResponseError:
        return "0-0"
    return str(info["last-generated-id"].decode())


def read(client: "redis.Redis", keys: Keys, *, after: str, block: float) -> tuple[str, list[InboxEvent]]:
    """Events after an entry id, waiting up to `block` seconds (0 does not wait).

    Returns the last entry id read and the readable events.
    """
    options = {"block": max(1, int(block * 1000))} if block > 0 else {}
    reply: Any = client.xread({keys.inbox: after}, count=READ_LIMIT, **options)
    events: list[InboxEvent] = []
    streams = reply.values() if isinstance(reply, dict) else [entries for _, entries in reply or []]
    for entries in streams:
        for entry_id, fields in _flat(entries):
            after = entry_id.decode()
            try:
                events.append(decode(INBOX_EVENT, fields.get(b"m", b"")))
            except DecodeError as error:
                bury(client, keys, channel="inbox", error=error)
    return after, events


def _flat(entries: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """RESP3 wraps a stream's entries in one more list than RESP2."""
    if entries and isinstance(entries[0], list):
        return [entry for inner in entries for entry in inner]
    return list(entries)


def bury(client: "redis.Redis", keys: Keys, *, channel: str, error: DecodeError) -> None:
    """Keep an unreadable payload in the dead letters and count it."""
    with client.pipeline(transaction=False) as pipe:
        pipe.xadd(
            keys.dead_letters,
            {"channel": channel, "reason": str(error)[:500], "payload": error.payload[:10_000]},
            maxlen=DEAD_LETTER_LIMIT,
        )
        pipe.hincrby(keys.totals, "dead_letters", 1)
        pipe.execute(raise_on_error=False)


def trim(keys: Keys, *, fence: str, before: str) -> Call[None]:
    """Drop the entries before one that the leader has read.

    Raises:
        NotLeader: the fence is not the pool's.
    """

    def parse(reply: Any) -> None:
        if reply == b"FENCED":
            raise NotLeader("another scheduler leads")

    return Call("trim_inbox", (keys.leader, keys.inbox), (fence, before), parse)
