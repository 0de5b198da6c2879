"""How much K/V room the free memory gives, where nobody said.

Knows `/proc` and both versions of control groups; where neither tells, it says so with a guess.
"""

import logging
import os
from pathlib import Path

LOG = logging.getLogger(__name__)

SHARE = 0.5
"""The part of free memory that K/V may take: activations, the page cache and other services need some."""
MOST_SLOTS = 65_536
"""More than this no CPU engine can use."""
GUESS_BYTES = 2 << 30
UNLIMITED = 1 << 60
"""Control groups say "no limit" with absurdly large numbers."""


def free_bytes(root: Path = Path("/")) -> int:
    """Memory that this process may still take: the machine's, or its control group's if less."""
    candidates = [_machine(root / "proc/meminfo")]
    for limit, usage in (
        ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        most, used = _number(root / limit), _number(root / usage)
        if most is not None and most < UNLIMITED:
            candidates.append(max(0, most - (used or 0)))
    known = [value for value in candidates if value is not None]
    if not known:
        LOG.warning("the system does not tell its free memory; 2 GiB are assumed (see --kv-slots)")
        return GUESS_BYTES
    return min(known)


def default_slots(
    *, bytes_per_slot: int, engines: int, max_batch_size: int, max_model_len: int, free: int
) -> int:
    """K/V slots of one engine: its part of free memory, at most what a full batch can fill."""
    fitting = int(free * SHARE) // engines // bytes_per_slot
    return max(0, min(fitting, MOST_SLOTS, max_batch_size * max_model_len))


def _machine(meminfo: Path) -> int | None:
    try:
        for line in meminfo.read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text("ascii").strip())
    except (OSError, ValueError):
        return None
