"""The K/V manager's accounts."""

import pytest
import torch

from services.engine.kv_manager import KVLayout, KVManager
from shared.protocol.result import Phase

LAYOUT = KVLayout(n_layers=2, n_kv_heads=3, head_dim=4)


@pytest.fixture
def kv() -> KVManager:
    return KVManager(LAYOUT, n_slots=20)


def test_a_sequence_gets_exactly_its_reservation(kv: KVManager) -> None:
    cache = kv.admit("a", 7)
    assert (cache.reserved_slots, kv.n_reserved, kv.n_used) == (7, 7, 0)


def test_reservations_fill_the_slots_and_no_more(kv: KVManager) -> None:
    kv.admit("a", 15)
    with pytest.raises(MemoryError, match="6 K/V slots are asked for and 5 are free"):
        kv.admit("b", 6)
    kv.admit("c", 5)
    assert kv.n_reserved == kv.n_slots


def test_release_frees_the_room_and_may_come_twice(kv: KVManager) -> None:
    kv.admit("a", 20)
    kv.release("a")
    kv.release("a")
    assert (len(kv), kv.n_reserved) == (0, 0)
    kv.admit("b", 20)


def test_a_sequence_is_admitted_once(kv: KVManager) -> None:
    kv.admit("a", 5)
    with pytest.raises(ValueError, match="already"):
        kv.admit("a", 5)


def test_an_empty_reservation_is_refused(kv: KVManager) -> None:
    with pytest.raises(ValueError, match="reserves 0"):
        kv.admit("a", 0)


def test_the_phase_is_whether_there_is_kv(kv: KVManager) -> None:
    assert kv.phase("a") is Phase.PREFILL
    kv.admit("a", 5)
    assert kv.phase("a") is Phase.PREFILL
    kv.extend("a", 3)
    assert kv.phase("a") is Phase.DECODE


def test_written_rows_count_only_when_extended(kv: KVManager) -> None:
    cache = kv.admit("a", 5)
    first = torch.ones(1, 3, 2, 4)
    keys, _ = cache.write(0, first, first)
    assert (keys.shape, cache.length) == ((1, 3, 2, 4), 0)
    again, _ = cache.write(0, 2 * first, 2 * first)
    assert torch.equal(again, 2 * first)


def test_rows_follow_each_other(kv: KVManager) -> None:
    cache = kv.admit("a", 5)
    cache.write(1, torch.ones(1, 3, 2, 4), torch.ones(1, 3, 2, 4))
    kv.extend("a", 2)
    keys, values = cache.write(1, 2 * torch.ones(1, 3, 1, 4), 3 * torch.ones(1, 3, 1, 4))
    assert keys[0, 0, :, 0].tolist() == [1, 1, 2]
    assert values[0, 2, :, 3].tolist() == [1, 1, 3]


def test_nothing_grows_beyond_its_reservation(kv: KVManager) -> None:
    kv.admit("a", 2)
    with pytest.raises(ValueError, match="outgrows"):
        kv.extend("a", 3)
    assert kv.n_used == 0


def test_bytes_of_a_slot() -> None:
    assert LAYOUT.bytes_per_slot == 2 * 2 * 3 * 4 * 4
