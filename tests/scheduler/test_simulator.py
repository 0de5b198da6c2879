"""The simulator runs the real scheduler: ORCA's acceptance vectors hold under its clock."""

from dataclasses import dataclass
from itertools import pairwise

import pytest

from benchmarks.chart import Panel, render
from benchmarks.engine_models import PAPER, Work
from benchmarks.simulation import Arrival, Mode, Outcome, Simulation, poisson_trace

FOREVER = 50


@dataclass(frozen=True)
class Steady:
    """Every stage takes one second for any batch."""

    n_stages: int = 1
    n_slots: int = 100_000
    name: str = "steady"

    def stage_seconds(self, work: Work) -> float:
        return 1.0 if work.members else 0.0


def serve(
    engine: Steady, *lengths: tuple[int, int], max_batch_size: int = 2, mode: Mode = Mode.ITERATION
) -> Outcome:
    """Requests of (prompt, answer) tokens that all arrive at once."""
    simulation = Simulation(engine, max_batch_size=max_batch_size, mode=mode)
    return simulation.run([Arrival(0.0, *one) for one in lengths])


def letters(outcome: Outcome) -> list[str]:
    """Members of each iteration, as the vectors name them: A for the first arrival."""
    return ["".join(chr(ord("A") + int(name[1:])) for name in batch) for batch in outcome.iterations]


def test_v8_v9_three_workers_go_round_and_each_has_a_batch_from_the_third_tick_on() -> None:
    outcome = serve(Steady(n_stages=3), *[(1, FOREVER)] * 6)
    assert letters(outcome)[:7] == ["AB", "CD", "EF", "AB", "CD", "EF", "AB"]
    ends = sorted({one.last_token for one in outcome.served})
    assert ends[0] == 3.0 * FOREVER, "a batch comes back every three ticks: no worker is ever idle"
    assert len(outcome.iterations) == 3 * FOREVER


def test_v10_a_finished_members_place_goes_to_the_oldest_that_is_not_running() -> None:
    outcome = serve(Steady(n_stages=3), (1, 1), *[(1, FOREVER)] * 6)
    assert letters(outcome)[:7] == ["AB", "CD", "EF", "BG", "CD", "EF", "BG"]


def test_v11_an_early_finisher_is_answered_at_once() -> None:
    four = ((2, 1), (2, 4), (2, 2), (2, 2))
    outcome = serve(Steady(), *four)
    assert letters(outcome) == ["AB", "BC", "BC", "BD", "D"]
    assert [one.last_token for one in outcome.served] == [1.0, 4.0, 3.0, 5.0]


def test_v11_under_request_level_scheduling_it_is_answered_with_the_last_of_its_batch() -> None:
    four = ((2, 1), (2, 4), (2, 2), (2, 2))
    outcome = serve(Steady(), *four, mode=Mode.REQUEST)
    assert letters(outcome) == ["AB", "CD"]
    assert [one.last_token for one in outcome.served] == [4.0, 4.0, 6.0, 6.0]


def test_classic_kernels_feed_longer_prompts_token_by_token() -> None:
    outcome = serve(Steady(), (2, 1), (5, 2), mode=Mode.CLASSIC)
    assert [one.last_token for one in outcome.served] == [5.0, 5.0]


def test_v12_v13_reservations_hold_back_who_does_not_fit() -> None:
    outcome = serve(Steady(n_slots=7), (2, 2), (1, 2), (1, 1))
    assert letters(outcome) == ["AB", "AB", "C"]
    outcome = serve(Steady(n_slots=20), (4, 4), (10, 10), (1, 1), max_batch_size=8)
    assert letters(outcome) == ["A"] * 4 + ["B"] * 10 + ["C"]


def test_a_run_is_a_function_of_its_seed() -> None:
    def run(seed: int) -> Outcome:
        arrivals = poisson_trace(4.0, 60, seed=seed)
        return Simulation(PAPER[1], max_batch_size=16).run(arrivals)

    assert run(1).iterations == run(1).iterations
    assert run(1).median_latency == run(1).median_latency
    assert run(1).median_latency != run(2).median_latency


def test_a_trace_keeps_its_requests_when_the_rate_changes() -> None:
    slow, fast = poisson_trace(1.0, 20, seed=3), poisson_trace(2.0, 20, seed=3)
    assert [(a.n_prompt, a.n_generated) for a in slow] == [(a.n_prompt, a.n_generated) for a in fast]
    assert [a.at for a in slow] == pytest.approx([2 * a.at for a in fast])


def test_what_a_batch_asks_of_attention_is_summed_over_its_members() -> None:
    work = Work.of([(1, 9), (4, 0)])
    assert (work.members, work.tokens, work.rows, work.pairs) == (2, 5, 14, 10 + 10)


def test_a_larger_batch_never_takes_less_time() -> None:
    for engine in PAPER:
        times = [engine.stage_seconds(Work.of([(1, 200)] * n)) for n in (1, 2, 8, 64, 512)]
        assert all(a <= b for a, b in pairwise(times))
        assert engine.stage_seconds(Work.of([])) == 0.0


def test_a_chart_draws_each_line_within_its_panel() -> None:
    panel = Panel("one & two", "x", "y", 10.0, {"a": [(0.1, 1.0), (1.0, 5.0), (2.0, 99.0)]})
    svg = render([panel])
    assert svg.count("<polyline") == 1
    assert "one &amp; two" in svg
    points = svg.split('points="')[1].split('"')[0].split()
    assert len(points) == 2, "what lies above the panel is left out"
