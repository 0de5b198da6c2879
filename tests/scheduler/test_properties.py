"""What must hold for every mix of sequences, engines, cancels and losses."""

from collections import Counter
from itertools import combinations
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.scheduler.selection import place
from services.scheduler.slots import EngineLedger
from shared.protocol.inbox import Ended, EngineLeft, InboxEvent
from tests.support.scripted_engine import Batch, Bench

bounded = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)

N_SLOTS = 24
prompts = st.integers(1, 8)
lengths = st.integers(1, 8)
sizes = st.lists(st.tuples(prompts, lengths, st.integers(0, 8)), min_size=1, max_size=10)
"""Per sequence: prompt, generated tokens, and by how much its reservation exceeds them."""
crowds = st.lists(st.tuples(prompts, lengths, st.integers(0, 8)), min_size=4, max_size=12)
"""Enough of them that an engine's slots are taken when another engine's come back."""
seeds = st.integers(0, 2**32).map(Random)


def check(bench: Bench) -> None:
    """The rules that hold after every step."""
    running: Counter[str] = Counter()
    for engine, batches in bench.in_flight.items():
        ledger = bench.state.engines.get(engine)
        if ledger is None:
            continue
        assert 0 <= ledger.n_reserved <= ledger.n_slots
        assert ledger.n_reserved == sum(s.reserved_slots for s in ledger.held())
        assert ledger.n_scheduled <= ledger.n_workers
        running.update(name for batch in batches for name in batch.ids)
    assert all(count == 1 for count in running.values()), "nobody is in two batches at once"


def arrive(bench: Bench, number: int, size: tuple[int, int, int]) -> None:
    n_prompt, generated, spare = size
    bench.submit(f"s{number:02}", n_prompt, generated, max_new_tokens=generated + spare)


@bounded
@given(sizes=sizes, max_batch_size=st.integers(1, 4), n_workers=st.integers(1, 3), random=seeds)
def test_every_sequence_ends_and_an_earlier_one_has_run_at_least_as_often(
    sizes: list[tuple[int, int, int]], max_batch_size: int, n_workers: int, random: Random
) -> None:
    bench = Bench(max_batch_size=max_batch_size)
    bench.engine(n_slots=N_SLOTS, n_workers=n_workers)
    iterations: Counter[str] = Counter()
    pending = list(enumerate(sizes))
    for _ in range(1000):
        if pending and random.random() < 0.6:
            arrive(bench, *pending.pop(0))
        for batch in bench.fill():
            iterations.update(batch.ids)
        check(bench)
        alive = [name for name in bench.lengths if name not in bench.ended]
        for earlier, later in combinations(alive, 2):
            assert iterations[earlier] >= iterations[later]
        if bench.in_flight["e0"]:
            bench.returns()
            check(bench)
        elif not pending:
            break
    assert len(bench.finished) == len(sizes)
    assert bench.state.engines["e0"].n_reserved == 0
    assert not bench.state.sequences


@bounded
@given(sizes=crowds, n_engines=st.integers(2, 3), n_workers=st.integers(1, 2), random=seeds)
def test_with_losses_and_cancels_every_sequence_still_ends(
    sizes: list[tuple[int, int, int]], n_engines: int, n_workers: int, random: Random
) -> None:
    chance = random.random
    bench = Bench(max_batch_size=3)
    for number in range(n_engines):
        bench.engine(f"e{number}", n_slots=N_SLOTS + number, n_workers=n_workers)
    pending, alive = list(enumerate(sizes)), n_engines
    for _ in range(2000):
        if pending and chance() < 0.6:
            arrive(bench, *pending.pop(0))
        bench.fill()
        check(bench)
        open_names = sorted(name for name in bench.lengths if name not in bench.ended)
        if pending and open_names and chance() < 0.1:
            name = open_names[int(chance() * len(open_names))]
            bench.ended.add(name)
            bench.hear(Ended(id=name))
        if alive > 1 and chance() < 0.1:
            alive -= 1
            lost = min(bench.state.engines)
            bench.in_flight[lost] = []
            bench.hear(EngineLeft(engine=lost))
        busy = sorted(e for e, batches in bench.in_flight.items() if batches)
        if busy:
            bench.returns(busy[int(chance() * len(busy))])
            check(bench)
        elif not pending and not bench.state.sequences:
            break
    assert not bench.state.sequences, "no deadlock and no starvation"
    assert bench.ended == set(bench.lengths)
    assert all(engine.n_reserved == 0 for engine in bench.state.engines.values())


@bounded
@given(sizes=sizes, n_engines=st.integers(1, 2))
def test_events_that_come_twice_change_nothing(sizes: list[tuple[int, int, int]], n_engines: int) -> None:
    once, twice = Bench(max_batch_size=2), Bench(max_batch_size=2, twice=True)
    for bench in (once, twice):
        for number in range(n_engines):
            bench.engine(f"e{number}", n_slots=N_SLOTS)
        for number, size in enumerate(sizes):
            arrive(bench, number, size)
        bench.run()
    assert once.batches == twice.batches


@bounded
@given(sizes=sizes, n_workers=st.integers(1, 3), random=seeds)
def test_events_that_come_again_late_change_nothing(
    sizes: list[tuple[int, int, int]], n_workers: int, random: Random
) -> None:
    plain, late = Bench(max_batch_size=2), Bench(max_batch_size=2)
    for bench in (plain, late):
        bench.engine(n_slots=N_SLOTS, n_workers=n_workers)
        for number, size in enumerate(sizes):
            arrive(bench, number, size)
    heard: list[InboxEvent] = []
    for _ in range(1000):
        plain.fill()
        late.fill()
        if not plain.in_flight["e0"]:
            break
        assert plain.batches == late.batches
        plain.returns()
        heard.append(late.returns())
        heard += [Ended(id=name) for name in late.finished]
        assert late.state.hear(random.choice(heard)) == []
        check(late)
    assert plain.batches == late.batches
    assert len(late.finished) == len(sizes)


class Load:
    """An engine as placement sees it."""

    def __init__(self, engine_id: str, n_slots: int, n_reserved: int = 0, has_place: bool = True) -> None:
        self.engine_id, self.n_slots = engine_id, n_slots
        self.n_reserved, self.has_place = n_reserved, has_place


def test_a_new_sequence_goes_to_the_engine_with_most_free_slots_ties_by_name() -> None:
    assert place(4, [Load("a", 10, 5), Load("b", 10, 3)]) == "b"
    assert place(4, [Load("b", 10), Load("a", 10)]) == "a"


def test_an_engine_with_a_full_batch_comes_after_one_with_a_place() -> None:
    assert place(4, [Load("a", 100, has_place=False), Load("b", 10)]) == "b"


def test_an_engine_that_can_never_hold_a_sequence_is_skipped() -> None:
    assert place(20, [Load("small", 10), Load("big", 30, 25)]) == "big"
    assert place(40, [Load("small", 10), Load("big", 30)]) is None


def test_an_engine_too_small_for_the_head_of_the_line_goes_on_with_the_next() -> None:
    bench = Bench()
    bench.engine("big", n_slots=30)
    bench.engine("small", n_slots=10)
    bench.submit("A", 10, 10)
    bench.submit("B", 10, 15)
    bench.submit("C", 2, 2)
    sent: list[Batch] = bench.fill()
    assert {(batch.engine, batch.members) for batch in sent} == {("big", "A"), ("small", "C")}


def test_a_ledger_gives_back_what_it_reserved_once() -> None:
    bench = Bench()
    bench.engine(n_slots=30)
    bench.submit("A", 4, 4)
    bench.fill()
    ledger: EngineLedger = bench.state.engines["e0"]
    sequence = bench.state.sequences["A"]
    assert ledger.n_reserved == 8
    ledger.release(sequence)
    ledger.release(sequence)
    assert (ledger.n_reserved, ledger.releases) == (0, ["A"])
