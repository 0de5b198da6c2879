"""The lead over one model: a fenced lock with expiry. Plumbing, no policy.

The lock's value is the fence, `counter:random`. Every step that a scheduler runs names its
fence and the pool compares for equality, so a paused leader that wakes is refused.
"""

from typing import Any

from shared.channels.calls import Call
from shared.keys import Keys

LEASE_SECONDS = 4.0
RENEW_SECONDS = 1.0


def _text(reply: Any) -> str:
    return reply.decode() if isinstance(reply, bytes) else str(reply or "")


def acquire(keys: Keys, *, token: str, lease: float = LEASE_SECONDS) -> Call[str]:
    """Take the lead if nobody has it; returns the fence, or "" while another leads.

    `token` is this attempt's random part: a repeat after a lost reply returns the same fence.
    """
    return Call("acquire", (keys.leader, keys.leader_counter), (token, int(lease * 1000)), _text)


def renew(keys: Keys, *, fence: str, lease: float = LEASE_SECONDS) -> Call[bool]:
    """Keep the lead; False when another has it or it has lapsed."""
    return Call("renew", (keys.leader,), (fence, int(lease * 1000)), bool)


def resign(keys: Keys, *, fence: str) -> Call[bool]:
    """Give the lead up at once, if it is still this fence's."""
    return Call("resign", (keys.leader,), (fence,), bool)
