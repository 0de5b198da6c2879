"""One engine's stream of batch descriptors.

At least once and in order; the entry id is the iteration number, so a reader that remembers the
last number it ran never runs one twice. Every rank of every stage reads the same stream.
"""

from typing import Any

import redis

from shared.channels.inbox import bury
from shared.errors import DecodeError
from shared.keys import Keys
from shared.protocol.batch import BatchDescriptor
from shared.protocol.wire import decode


def receive(
    client: "redis.Redis", keys: Keys, *, engine_id: str, after: int, block: float
) -> BatchDescriptor | None:
    """The descriptor that follows iteration `after`, waiting up to `block` seconds for it.

    An unreadable descriptor is buried and skipped.
    """
    name = keys.batches(engine_id)
    options = {"block": max(1, int(block * 1000))} if block > 0 else {}
    reply: Any = client.xread({name: f"{after}-0"}, count=1, **options)
    if not reply:
        return None
    entries = next(iter(reply.values())) if isinstance(reply, dict) else reply[0][1]
    if isinstance(entries[0], list):
        entries = entries[0]
    entry_id, fields = entries[0]
    try:
        descriptor = decode(BatchDescriptor, fields.get(b"m", b""))
    except DecodeError as error:
        bury(client, keys, channel="batches", error=error)
        client.xdel(name, entry_id)  # else every later call would meet it again
        number = int(entry_id.decode().split("-")[0])
        return receive(client, keys, engine_id=engine_id, after=number, block=0)
    return descriptor
