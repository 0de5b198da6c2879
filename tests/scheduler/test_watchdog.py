"""Stuck differs from busy: only an engine with work whose progress stands still is lost."""

from services.scheduler.watchdog import STUCK_SECONDS, Watchdog

LATER = STUCK_SECONDS


def test_an_engine_with_work_that_stands_still_is_stuck_after_the_limit_and_not_before() -> None:
    dog = Watchdog()
    assert dog.stuck({"e": 7}, ["e"], 0.0) == []
    assert dog.stuck({"e": 7}, ["e"], LATER - 0.1) == []
    assert dog.stuck({"e": 7}, ["e"], LATER) == ["e"]


def test_a_long_prefill_moves_layer_by_layer_and_is_not_stuck() -> None:
    dog = Watchdog()
    for layer in range(10):
        assert dog.stuck({"e": layer}, ["e"], layer * (LATER - 1)) == []


def test_an_idle_engine_may_stand_still_and_its_time_counts_from_the_next_work() -> None:
    dog = Watchdog()
    dog.stuck({"e": 7}, ["e"], 0.0)
    assert dog.stuck({"e": 7}, [], LATER) == []
    assert dog.stuck({"e": 7}, ["e"], 2 * LATER) == []
    assert dog.stuck({"e": 7}, ["e"], 3 * LATER) == ["e"]


def test_one_stuck_engine_says_nothing_of_the_others() -> None:
    dog = Watchdog()
    dog.stuck({"a": 1, "b": 1}, ["a", "b"], 0.0)
    assert dog.stuck({"a": 1, "b": 2}, ["a", "b"], LATER) == ["a"]


def test_an_engine_that_never_said_how_far_it_is_is_watched_as_well() -> None:
    dog = Watchdog()
    dog.stuck({}, ["e"], 0.0)
    assert dog.stuck({}, ["e"], LATER) == ["e"]


def test_while_redis_was_away_nobody_stood_still() -> None:
    dog = Watchdog()
    dog.stuck({"e": 7}, ["e"], 0.0)
    dog.forget()
    assert dog.stuck({"e": 7}, ["e"], LATER) == []
