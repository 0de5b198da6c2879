"""Placement is one walk that decisions share: it never differs from a walk made anew, and it is short."""

from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.scheduler.placement import LOOK_AHEAD, Placement
from shared.protocol.inbox import Ended, EngineLeft
from tests.support.scripted_engine import Bench

bounded = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


def placed(placement: Placement, bench: Bench) -> dict[str, list[str]]:
    return {engine: [s.id for s in placement.on(engine)] for engine in bench.state.engines}


def agrees(bench: Bench) -> None:
    state = bench.state
    anew = Placement(state._loads(), state._waiting)
    assert placed(state._placed(), bench) == placed(anew, bench)


@bounded
@given(
    sizes=st.lists(
        st.tuples(st.integers(1, 12), st.integers(1, 8), st.integers(-1, 1)), min_size=5, max_size=30
    ),
    n_engines=st.integers(1, 4),
    random=st.integers(0, 2**32).map(Random),
)
def test_a_kept_walk_gives_what_a_new_one_would(
    sizes: list[tuple[int, int, int]], n_engines: int, random: Random
) -> None:
    bench = Bench(max_batch_size=3)
    for number in range(n_engines):
        bench.engine(f"e{number}", n_slots=24 + number, n_workers=1 + number % 2, max_batch_size=3)
    pending, step = list(enumerate(sizes)), 0
    while pending or bench.state.sequences:
        step += 1
        assert step < 3000
        if pending and random.random() < 0.5:
            number, (n_prompt, generated, priority) = pending.pop(0)
            bench.submit(f"s{number:02}", n_prompt, generated, priority=priority)
            agrees(bench)
        bench.fill()
        agrees(bench)
        waiting = [s.id for _, s in bench.state._waiting]
        if waiting and random.random() < 0.1:
            name = random.choice(waiting)
            bench.ended.add(name)
            bench.hear(Ended(id=name))
            agrees(bench)
        if len(bench.state.engines) > 1 and random.random() < 0.02:
            lost = random.choice(sorted(bench.state.engines))
            bench.in_flight[lost] = []
            bench.hear(EngineLeft(engine=lost))
            agrees(bench)
        busy = sorted(engine for engine, batches in bench.in_flight.items() if batches)
        if busy:
            bench.returns(random.choice(busy))
            agrees(bench)


def test_a_decision_looks_at_no_more_of_a_long_line_than_it_takes() -> None:
    bench = Bench(max_batch_size=16)
    bench.engine(n_slots=16 * 10, max_batch_size=16)
    for number in range(2000):
        bench.submit(f"s{number}", 5, 5)
    bench.fill()
    bench.returns()
    assert bench.state.decide("e0") is not None
    assert bench.state._placed().walked <= 1, "the first that does not fit ends the walk"


def test_engines_that_are_full_are_not_looked_at_for_the_whole_line() -> None:
    bench = Bench(max_batch_size=16)
    for number in range(8):
        bench.engine(f"e{number}", n_slots=160, max_batch_size=16)
    for number in range(2000):
        bench.submit(f"s{number}", 5, 5)
    bench.fill()
    assert all(len(bench.in_flight[f"e{number}"][0].ids) == 16 for number in range(8))
    bench.returns("e3")
    bench.state.decide("e3")
    assert bench.state._placed().walked <= LOOK_AHEAD + 1
    walk = bench.state._placed()
    for number in (3, 4, 5):
        bench.state.decide(f"e{number}")
    assert bench.state._placed() is walk, "decisions share it"


def test_many_engines_are_filled_in_the_first_round() -> None:
    bench = Bench(max_batch_size=4)
    for number in range(80):
        bench.engine(f"e{number:02}", n_slots=100, max_batch_size=4)
    for number in range(80 * 4):
        bench.submit(f"s{number}", 5, 5)
    bench.fill()
    assert {len(batches[0].ids) for batches in bench.in_flight.values()} == {4}
