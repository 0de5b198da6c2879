"""Every name that orca uses in Redis, and the protocol version that is part of each.

Knows names only, no values. All names of one model carry the same hash tag, so they share a
cluster slot and one script may touch several of them. A change that old readers cannot follow
gets a new PROTOCOL_VERSION and with it new names: two versions side by side never meet.
"""

from dataclasses import dataclass

PROTOCOL_VERSION = 1
PREFIX = f"orca:v{PROTOCOL_VERSION}"


@dataclass(frozen=True, slots=True)
class Keys:
    """The names of one served model."""

    model: str

    def _name(self, *parts: str) -> str:
        return ":".join((PREFIX, "{" + self.model + "}", *parts))

    def request(self, sequence_id: str) -> str:
        """Hash: one sequence's record."""
        return self._name("request", sequence_id)

    def prompt(self, group: str, prompt_index: int) -> str:
        """String: the token ids of a group's k-th prompt, once for all its choices."""
        return self._name("prompt", group, str(prompt_index))

    def tokens(self, sequence_id: str) -> str:
        """List: the token log; its length is the index of the next token."""
        return self._name("tokens", sequence_id)

    def order(self, group: str) -> str:
        """List: the choice of each committed token; only for groups of several choices."""
        return self._name("order", group)

    @property
    def open(self) -> str:
        """Sorted set: unfinished sequences by arrival number; its size is the global bound."""
        return self._name("open")

    @property
    def arrival(self) -> str:
        """Counter: the arrival number of the last accepted sequence."""
        return self._name("arrival")

    @property
    def groups(self) -> str:
        """Hash: open sequences per group and per prompt, so that each ends exactly once."""
        return self._name("groups")

    @property
    def inbox(self) -> str:
        """Stream: everything the scheduler must hear, in one order."""
        return self._name("inbox")

    def batches(self, engine_id: str) -> str:
        """Stream: batch descriptors for one engine; the entry id is the iteration number."""
        return self._name("batches", engine_id)

    def committed(self, engine_id: str) -> str:
        """String: the last committed iteration and its answer."""
        return self._name("committed", engine_id)

    def iterations(self, engine_name: str) -> str:
        """Capped stream: the record of past iterations, by the engine's stable name."""
        return self._name("iterations", engine_name)

    @property
    def events_prefix(self) -> str:
        """Start of every pub/sub channel; the gateway's id follows."""
        return self._name("events", "")

    def events(self, gateway_id: str) -> str:
        """Pub/sub channel: token and state events for one gateway."""
        return self.events_prefix + gateway_id

    @property
    def engines(self) -> str:
        """Set: ids of engines that joined and have not left."""
        return self._name("engines")

    @property
    def gateways(self) -> str:
        """Set: ids of gateways that joined and have not left."""
        return self._name("gateways")

    def engine(self, engine_id: str) -> str:
        """String with a lifetime: an engine's presence."""
        return self._name("engine", engine_id)

    def gateway(self, gateway_id: str) -> str:
        """String with a lifetime: a gateway's presence."""
        return self._name("gateway", gateway_id)

    @property
    def progress(self) -> str:
        """Hash: engine id -> a counter that advances with every layer it computes."""
        return self._name("progress")

    @property
    def gauges(self) -> str:
        """Hash: engine name -> its last iteration's gauges, as JSON."""
        return self._name("gauges")

    @property
    def leader(self) -> str:
        """String with a lifetime: the fence of the leading scheduler, `counter:random`."""
        return self._name("leader")

    @property
    def leader_counter(self) -> str:
        """Counter: how many times the lead was taken."""
        return self._name("leader_counter")

    def idempotency(self, digest: str) -> str:
        """String: the group that an idempotency key is bound to, and its body's fingerprint."""
        return self._name("idempotency", digest)

    @property
    def settings(self) -> str:
        """Hash: runtime settings that were changed, name -> JSON value."""
        return self._name("settings")

    @property
    def totals(self) -> str:
        """Hash: counters, moved by the script that changes the state."""
        return self._name("totals")

    @property
    def dead_letters(self) -> str:
        """Capped stream: payloads that could not be read, kept as they came."""
        return self._name("dead_letters")
