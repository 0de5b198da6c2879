"""How each event changes what the scheduler knows: ends, losses, drains, reports, time."""

import pytest

from services.scheduler.effects import AskReport, Fail, Reassign, Refresh
from services.scheduler.sequence import Sequence
from shared.errors import ErrorCode
from shared.protocol.inbox import (
    Ended,
    EngineDraining,
    EngineJoined,
    EngineLeft,
    Output,
    Reassigned,
    Reported,
    Returned,
    SettingsChanged,
    Tick,
)
from shared.protocol.result import EngineReport, HeldSequence
from shared.protocol.token import State
from shared.protocol.wire import encode
from tests.support.scripted_engine import FENCE, Bench, make_request


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.engine("e0", n_slots=20)
    return bench


def test_a_sequence_that_ends_while_it_waits_needs_no_release(bench: Bench) -> None:
    bench.submit("A", 2, 2)
    bench.hear(Ended(id="A"))
    assert bench.fill() == []
    assert bench.state.n_waiting == 0


def test_a_release_travels_alone_when_nothing_else_is_due(bench: Bench) -> None:
    bench.submit("A", 2, 9)
    bench.fill()
    bench.returns()
    bench.hear(Ended(id="A"))
    (alone,) = bench.fill()
    assert (alone.ids, alone.releases, alone.n_reserved) == ((), ("A",), 0)
    bench.returns()
    assert bench.fill() == [], "and it travels once"


def test_a_result_for_an_iteration_that_was_never_sent_changes_nothing(bench: Bench) -> None:
    bench.submit("A", 2, 9)
    bench.fill()
    output = Output(id="A", attempt=0, accepted=True, index=0, token=3)
    assert bench.hear(Returned(engine="e0", iteration=99, outputs=(output,))) == []
    assert bench.state.sequences["A"].in_flight
    assert bench.hear(Returned(engine="gone", iteration=1, outputs=(output,))) == []


def test_a_refused_member_is_read_again(bench: Bench) -> None:
    bench.submit("A", 2, 9)
    bench.fill()
    refused = Output(id="A", attempt=0, accepted=False, index=0, token=3)
    assert bench.hear(Returned(engine="e0", iteration=1, outputs=(refused,))) == [Refresh("A")]


def test_a_reassign_that_was_not_heard_of_is_read(bench: Bench) -> None:
    bench.submit("A", 2, 9)
    assert bench.hear(Reassigned(id="A", attempt=1)) == [Refresh("A")]
    assert bench.hear(Reassigned(id="A", attempt=0)) == []
    assert bench.hear(Reassigned(id="unknown", attempt=3)) == []


def test_all_sequences_of_a_lost_engine_wait_again_with_their_arrival(bench: Bench) -> None:
    bench.submit("A", 2, 9)
    bench.submit("B", 2, 5)
    bench.fill()
    bench.returns()
    bench.fill()
    effects = bench.hear(EngineLeft(engine="e0"))
    assert effects == [Reassign("A", "e0", 0), Reassign("B", "e0", 0)]
    assert bench.hear(EngineLeft(engine="e0")) == []
    bench.in_flight["e0"] = []
    bench.engine("e1", n_slots=20)
    (again,) = bench.fill()
    assert (again.members, again.tokens) == ("AB", 3 + 3), "prompt and log are prefilled again"


def test_after_a_loss_younger_sequences_that_hold_their_slots_go_on() -> None:
    bench = Bench()
    bench.engine("e0", n_slots=20)
    bench.submit("A", 5, 10)
    bench.fill()
    bench.engine("e1", n_slots=20)
    bench.submit("B", 5, 10)
    bench.fill()
    bench.in_flight["e0"] = []
    bench.hear(EngineLeft(engine="e0"))
    bench.run()
    assert bench.finished == ["B", "A"]


def test_a_draining_engine_hands_over_its_idle_sequences_at_once_and_the_others_on_return() -> None:
    bench = Bench()
    bench.engine("e0", n_slots=20)
    bench.submit("A", 2, 9)
    bench.fill()
    bench.engine("e1", n_slots=20)
    assert bench.hear(EngineDraining(engine="e0")) == []
    bench.returns("e0")
    assert bench.effects[-1] == Reassign("A", "e0", 0)
    assert [(batch.engine, batch.members) for batch in bench.fill()] == [("e0", ""), ("e1", "A")]


def test_without_another_engine_a_draining_one_finishes_what_it_holds_and_takes_nothing_new(
    bench: Bench,
) -> None:
    bench.submit("A", 2, 3)
    bench.fill()
    bench.hear(EngineDraining(engine="e0"))
    bench.submit("B", 2, 3)
    bench.run()
    assert bench.finished == ["A"]
    assert bench.state.n_waiting == 1


def test_a_sequence_too_large_for_the_other_engines_ends_on_the_draining_one() -> None:
    bench = Bench()
    bench.engine("big", n_slots=50)
    bench.submit("A", 20, 10)
    bench.fill()
    bench.engine("small", n_slots=20)
    bench.hear(EngineDraining(engine="big"))
    bench.returns("big")
    assert not [effect for effect in bench.effects if isinstance(effect, Reassign)]
    bench.run()
    assert bench.finished == ["A"]


def test_what_fits_no_engine_that_is_left_is_refused_at_the_next_tick() -> None:
    bench = Bench()
    bench.engine("big", n_slots=50)
    bench.submit("A", 20, 10)
    bench.fill()
    bench.engine("small", n_slots=20)
    bench.in_flight["big"] = []
    bench.hear(EngineLeft(engine="big"))
    (refusal,) = bench.hear(Tick(now=1.0))
    assert isinstance(refusal, Fail)
    assert (refusal.request.id, refusal.code, refusal.only_if) == ("A", ErrorCode.NEVER_FITS, State.WAITING)


# -- a new leader


def taken_over(n_output: int) -> Bench:
    """A new leader that has read a running sequence of three prompt tokens."""
    bench = Bench()
    sequence = Sequence(
        request=make_request("A", 3, 9), arrival=1, since=0.0, n_output=n_output, last_token=7
    )
    bench.state.add_running(sequence, "e0")
    bench.lengths["A"], bench.logs["A"], bench.attempts["A"] = 9, n_output, 0
    return bench


def held(n_kv: int, attempt: int = 0) -> tuple[HeldSequence, ...]:
    return (HeldSequence(id="A", attempt=attempt, n_kv=n_kv, reserved_slots=12),)


def test_a_sequence_whose_kv_covers_all_tokens_but_one_is_adopted_without_recompute() -> None:
    bench = taken_over(n_output=2)
    bench.engine("e0", held=held(n_kv=4))
    assert not [effect for effect in bench.effects if isinstance(effect, Reassign)]
    (batch,) = bench.fill()
    assert (batch.members, batch.tokens, batch.n_reserved) == ("A", 1, 12)


@pytest.mark.parametrize(("n_kv", "attempt"), [(5, 0), (3, 0), (4, 1)])
def test_a_sequence_that_does_not_agree_with_the_log_is_released_and_reassigned(
    n_kv: int, attempt: int
) -> None:
    bench = taken_over(n_output=2)
    bench.engine("e0", held=held(n_kv, attempt))
    assert Reassign("A", "e0", 0) in bench.effects
    (batch,) = bench.fill()
    assert (batch.releases, batch.tokens) == (("A",), 5)


def test_a_sequence_without_a_token_cannot_be_adopted() -> None:
    bench = taken_over(n_output=0)
    bench.engine("e0", held=held(n_kv=2))
    assert Reassign("A", "e0", 0) in bench.effects


def test_what_an_engine_holds_of_nobody_is_released() -> None:
    bench = Bench()
    bench.engine("e0", held=held(n_kv=2))
    (batch,) = bench.fill()
    assert (batch.ids, batch.releases) == ((), ("A",))


def test_a_result_that_the_record_already_showed_counts_once() -> None:
    bench = taken_over(n_output=2)
    bench.engine("other")
    joined = bench.state.engines["other"].status.model_copy(update={"id": "e0", "name": "e0"})
    bench.hear(EngineJoined(status=joined))
    for index, token in ((1, 7), (2, 8)):
        output = Output(id="A", attempt=0, accepted=True, index=index, token=token)
        bench.hear(Returned(engine="e0", iteration=index, outputs=(output,)))
    sequence = bench.state.sequences["A"]
    assert (sequence.n_output, sequence.last_token) == (3, 8)
    assert bench.state.decide("e0") is None, "nothing goes to an engine that has not reported"


def test_an_answer_to_another_leaders_question_is_ignored() -> None:
    bench = taken_over(n_output=2)
    bench.engine("other")
    status = bench.state.engines["other"].status.model_copy(update={"id": "e0", "name": "e0"})
    assert bench.hear(EngineJoined(status=status)) == [AskReport("e0")]
    report = EngineReport(fence="0:other", status=status, last_iteration=1, held=held(4))
    bench.hear(Reported(engine="e0", report=encode(report).decode()))
    assert not bench.state.engines["e0"].ready
    mine = report.model_copy(update={"fence": FENCE})
    bench.hear(Reported(engine="e0", report=encode(mine).decode()))
    assert bench.state.engines["e0"].ready


# -- time


def test_a_sequence_that_waited_longer_than_the_queue_timeout_fails_only_while_it_waits() -> None:
    bench = Bench(queue_timeout=5.0)
    bench.hear(Tick(now=100.0))
    bench.submit("A", 2, 2)
    assert bench.hear(Tick(now=104.0)) == []
    (failure,) = bench.hear(Tick(now=105.0))
    assert isinstance(failure, Fail)
    assert (failure.code, failure.only_if) == (ErrorCode.QUEUE_TIMEOUT, State.WAITING)


def test_the_queue_timeout_does_not_touch_a_running_sequence() -> None:
    bench = Bench(queue_timeout=5.0)
    bench.engine()
    bench.submit("A", 2, 2)
    bench.fill()
    assert bench.hear(Tick(now=50.0)) == []


def test_timeout_seconds_ends_a_sequence_whatever_it_does(bench: Bench) -> None:
    bench.submit("A", 2, 2, timeout_seconds=3.0)
    bench.fill()
    (failure,) = bench.hear(Tick(now=3.0))
    assert isinstance(failure, Fail)
    assert (failure.code, failure.only_if) == (ErrorCode.REQUEST_TIMEOUT, None)


def test_changed_settings_hold_from_the_next_decision_and_null_takes_them_back() -> None:
    bench = Bench(max_batch_size=2)
    bench.engine("e0", n_slots=100)
    for name in "ABC":
        bench.submit(name, 1, 5)
    bench.hear(SettingsChanged(fields=("max_batch_size", "1")))
    (first,) = bench.fill()
    assert first.ids == ("A",)
    bench.returns()
    bench.hear(SettingsChanged(fields=("max_batch_size", "null")))
    (second,) = bench.fill()
    assert second.ids == ("A", "B")


def test_a_changed_queue_timeout_counts_for_those_that_wait_already(bench: Bench) -> None:
    bench.submit("A", 2, 99)
    bench.hear(SettingsChanged(fields=("queue_timeout", "3")))
    (effect,) = [
        e for e in bench.hear(Tick(now=4.0)) if isinstance(e, Fail) and e.code is ErrorCode.QUEUE_TIMEOUT
    ]
    assert effect.request.id == "A"
