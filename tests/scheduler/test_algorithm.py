"""ORCA's Algorithm 1 with exactly the numbers of its acceptance vectors."""

from services.scheduler.effects import Fail
from services.scheduler.selection import select_request_level
from shared.errors import ErrorCode
from shared.protocol.inbox import Ended
from tests.support.scripted_engine import Bench


def pipeline(names: str = "ABCDEF") -> Bench:
    """Three workers, two members a batch, nobody finishing."""
    bench = Bench(max_batch_size=2)
    bench.engine(n_workers=3, n_slots=100_000)
    for name in names:
        bench.submit(name)
    return bench


def members(bench: Bench) -> list[str]:
    return [batch.members for batch in bench.batches]


def test_v8_the_scheduler_waits_only_when_every_worker_has_a_batch() -> None:
    bench = pipeline()

    bench.fill()
    assert members(bench) == ["AB", "CD", "EF"]
    assert bench.fill() == [], "three batches in flight: it waits for AB"

    for _ in range(4):
        bench.returns()
        bench.fill()
    assert members(bench) == ["AB", "CD", "EF", "AB", "CD", "EF", "AB"]


def test_v9_from_the_third_tick_on_no_worker_is_idle() -> None:
    bench = pipeline()
    workers = ["-", "-", "-"]
    ticks = []
    for _ in range(5):
        if workers[2] != "-":
            bench.returns()
        # One batch enters the first worker per tick of the pipeline.
        decision = bench.state.decide("e0")
        assert decision is not None
        workers = [bench._dispatch(decision).members, *workers[:2]]
        ticks.append("/".join(workers))
    assert ticks == ["AB/-/-", "CD/AB/-", "EF/CD/AB", "AB/EF/CD", "CD/AB/EF"]


def test_v10_a_finished_members_place_goes_to_the_oldest_that_is_not_running() -> None:
    bench = pipeline("ABCDEFG")
    bench.lengths["A"] = 1
    bench.fill()
    for _ in range(4):
        bench.returns()
        bench.fill()
    assert members(bench) == ["AB", "CD", "EF", "BG", "CD", "EF", "BG"]


def four_requests(bench: Bench) -> None:
    bench.engine()
    for name, n_prompt, generated in (("A", 2, 1), ("B", 2, 4), ("C", 2, 2), ("D", 2, 2)):
        bench.submit(name, n_prompt, generated)


def test_v11_an_early_finisher_leaves_at_once_and_the_next_joins_the_next_iteration() -> None:
    bench = Bench(max_batch_size=2)
    four_requests(bench)
    bench.run()
    assert bench.rows() == [("AB", 4), ("BC", 3), ("BC", 2), ("BD", 3), ("D", 1)]
    assert bench.finished[0] == "A"
    assert bench.emitted.index("A") == 0


def test_v11_request_level_batches_are_fixed_until_all_members_have_ended() -> None:
    bench = Bench(max_batch_size=2, select=select_request_level, until_done=True)
    four_requests(bench)
    bench.fill()
    assert not bench.finished, "nobody is answered before the whole batch has returned"
    bench.returns()
    assert (bench.finished, bench.logs["B"]) == (["A", "B"], 4)
    batches = bench.run()
    assert [batch.members for batch in batches] == ["AB", "CD"]
    passes = [max(bench.lengths[name] for name in batch.ids) for batch in batches]
    assert passes == [4, 2], "six iterations instead of five, and A is answered after four"


def test_v12_a_sequence_joins_when_its_whole_reservation_fits() -> None:
    bench = Bench(max_batch_size=2)
    bench.engine(n_slots=7)
    for name, n_prompt, generated in (("0", 2, 2), ("1", 1, 2), ("2", 1, 1)):
        bench.submit(name, n_prompt, generated)
    batches = bench.run()
    assert [(batch.members, batch.n_reserved) for batch in batches] == [("01", 7), ("01", 7), ("2", 2)]
    assert bench.emitted == list("01012")


def test_v13_a_smaller_later_sequence_does_not_overtake_one_that_does_not_fit() -> None:
    bench = Bench(max_batch_size=8)
    bench.engine(n_slots=20)
    for name, n_prompt, generated in (("A", 4, 4), ("B", 10, 10), ("C", 1, 1)):
        bench.submit(name, n_prompt, generated)
    batches = bench.run()
    assert [batch.members for batch in batches] == ["A"] * 4 + ["B"] * 10 + ["C"]
    assert [batch.n_reserved for batch in batches] == [8] * 4 + [20] * 10 + [2]


def test_v14_what_no_engine_can_ever_hold_is_refused_and_blocks_nobody() -> None:
    bench = Bench()
    bench.engine(n_slots=10)
    bench.submit("A", 6, 5)
    bench.submit("B", 5, 5)
    (refusal,) = [effect for effect in bench.effects if isinstance(effect, Fail)]
    assert (refusal.request.id, refusal.code) == ("A", ErrorCode.NEVER_FITS)
    assert "11" in refusal.message
    assert "10" in refusal.message
    assert [batch.members for batch in bench.fill()] == ["B"]


def test_v15_with_nothing_selectable_no_batch_is_sent() -> None:
    bench = Bench(max_batch_size=2)
    bench.engine(n_workers=3)
    assert bench.fill() == [], "an empty pool"
    bench.submit("A", 2, 2)
    assert [batch.members for batch in bench.fill()] == ["A"]
    assert bench.fill() == [], "A is in flight and nobody else is there"
    bench.run()
    assert bench.fill() == []


def test_v16_an_arrival_during_an_iteration_runs_in_the_next_one() -> None:
    bench = Bench()
    bench.engine()
    bench.submit("A", 2, 5)
    bench.fill()
    bench.submit("B", 3, 5)
    assert bench.fill() == []
    bench.returns()
    assert [(batch.members, batch.tokens) for batch in bench.fill()] == [("AB", 4)]


def test_v16_with_free_workers_an_arrival_runs_in_the_very_next_select() -> None:
    bench = Bench()
    bench.engine(n_workers=2)
    bench.submit("A", 2, 5)
    bench.fill()
    bench.submit("B", 3, 5)
    assert [batch.members for batch in bench.fill()] == ["B"]


def test_v17_a_cancelled_sequence_is_absent_from_the_next_batch_and_its_slots_are_free_before_it() -> None:
    bench = Bench()
    bench.engine(n_slots=20)
    bench.submit("A", 4, 4)
    bench.submit("B", 4, 8)
    bench.submit("C", 4, 4)
    assert [batch.members for batch in bench.fill()] == ["AB"]

    bench.ended.add("B")
    bench.hear(Ended(id="B"))
    bench.returns()

    (after,) = bench.fill()
    assert (after.members, after.releases, after.n_reserved) == ("AC", ("B",), 16)
    assert bench.logs["B"] == 0, "its token of that iteration is not delivered"
