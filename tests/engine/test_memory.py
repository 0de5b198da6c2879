"""How much K/V room the free memory gives."""

from pathlib import Path

from services.engine.memory import default_slots, free_bytes

GIB = 1 << 30


def system(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "ascii")
    return root


MEMINFO = {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    8388608 kB\n"}
V1 = "sys/fs/cgroup/memory/memory"


def test_the_machines_free_memory_counts(tmp_path: Path) -> None:
    assert free_bytes(system(tmp_path, MEMINFO)) == 8 * GIB


def test_a_smaller_control_group_counts_instead(tmp_path: Path) -> None:
    limits = {"sys/fs/cgroup/memory.max": f"{3 * GIB}\n", "sys/fs/cgroup/memory.current": f"{GIB}\n"}
    assert free_bytes(system(tmp_path, MEMINFO | limits)) == 2 * GIB


def test_the_older_control_groups_count_too(tmp_path: Path) -> None:
    limits = {f"{V1}.limit_in_bytes": str(3 * GIB), f"{V1}.usage_in_bytes": str(GIB)}
    assert free_bytes(system(tmp_path, MEMINFO | limits)) == 2 * GIB


def test_an_unlimited_control_group_is_no_limit(tmp_path: Path) -> None:
    limits = {"sys/fs/cgroup/memory.max": "max\n", f"{V1}.limit_in_bytes": str(2**63 - 4096)}
    assert free_bytes(system(tmp_path, MEMINFO | limits)) == 8 * GIB


def test_engines_of_one_host_share_and_a_full_batch_bounds() -> None:
    room = {"bytes_per_slot": 1 << 16, "max_batch_size": 16, "max_model_len": 2048}
    assert default_slots(engines=1, free=GIB, **room) == 8192
    assert default_slots(engines=2, free=GIB, **room) == 4096
    assert default_slots(engines=1, free=64 * GIB, **room) == 16 * 2048
    assert default_slots(engines=1, free=64 * GIB, **room | {"max_model_len": 32768}) == 65536
    assert default_slots(engines=1, free=0, **room) == 0
