"""The rules of the pool's steps, on a real server: each test is one rule of the protocol."""

from typing import Any

import pytest

from shared.channels import lease, request_pool
from shared.errors import NotLeader
from shared.protocol.inbox import Ended, Reassigned, Returned, Submitted
from shared.protocol.token import State, StateEvent, TokenEvent
from tests.shared.pool import GATEWAY, Bench, entry, make_group, make_request

A, B = make_request("a"), make_request("b")


class TestSubmit:
    def test_an_accepted_sequence_waits_and_the_scheduler_hears_of_it(self, bench: Bench) -> None:
        assert bench.submit(A).outcome == "accepted"
        record = bench.look(A).record
        assert (record.state, record.attempt, record.listeners) == (State.WAITING, 0, (GATEWAY,))
        assert record.request == A
        submitted = [e for e in bench.inbox() if isinstance(e, Submitted)]
        assert [(e.id, e.arrival) for e in submitted] == [("a", 1)]
        assert bench.client.zcard(bench.keys.open) == 1

    def test_a_repeat_after_a_lost_reply_is_a_success_and_accepts_nothing_twice(self, bench: Bench) -> None:
        bench.submit(A)
        assert bench.submit(A).outcome == "accepted"
        assert bench.client.zcard(bench.keys.open) == 1
        assert len([e for e in bench.inbox() if isinstance(e, Submitted)]) == 1
        assert bench.total("prompt_tokens") == 2

    def test_a_full_queue_refuses_the_whole_group_and_writes_nothing(self, bench: Bench) -> None:
        bench.submit(A, max_queue=2)
        assert bench.submit(*make_group("g", 2), max_queue=2).outcome == "full"
        assert bench.client.zcard(bench.keys.open) == 1
        assert not list(bench.client.scan_iter("*g.0*"))
        assert bench.submit(B, max_queue=2).outcome == "accepted"

    def test_a_known_idempotency_key_answers_with_its_first_request(self, bench: Bench) -> None:
        key: dict[str, Any] = {"idempotency": "k", "fingerprint": "f"}
        bench.submit(A, **key)
        again = bench.submit(B, **key)
        assert (again.outcome, again.group) == ("known", "a")
        other = bench.submit(B, idempotency="k", fingerprint="g")
        assert (other.outcome, other.group) == ("conflict", "a")
        assert bench.client.zcard(bench.keys.open) == 1

    def test_a_refused_request_binds_no_key(self, bench: Bench) -> None:
        bench.submit(A, max_queue=1)
        bench.submit(B, max_queue=1, idempotency="k", fingerprint="f")
        assert not bench.client.exists(bench.keys.idempotency("k"))

    def test_a_key_may_be_taken_over_from_the_group_that_failed_and_from_no_other(self, bench: Bench) -> None:
        key: dict[str, Any] = {"idempotency": "k", "fingerprint": "f"}
        bench.submit(A, **key)
        bench.end(A, State.FAILED)
        assert bench.submit(B, **key, replaces="z").outcome == "known"
        assert bench.submit(B, **key, replaces="a").outcome == "accepted"
        assert bench.submit(make_request("c"), **key).group == "b"

    def test_arrival_numbers_follow_the_order_of_acceptance(self, bench: Bench) -> None:
        group = make_group("g", 2)
        bench.submit(*group)
        bench.submit(A)
        assert [bench.look(r).record.arrival for r in (*group, A)] == [1, 2, 3]


class TestDispatch:
    def test_a_dispatched_sequence_runs_on_that_engine(self, bench: Bench) -> None:
        bench.submit(A)
        assert bench.dispatch(A) == ()
        record = bench.look(A).record
        assert (record.state, record.engine) == (State.RUNNING, bench.engine)
        assert record.times["started"] >= record.times["submitted"]
        assert bench.total("running") == 1

    def test_a_repeat_sends_no_second_descriptor(self, bench: Bench) -> None:
        bench.submit(A)
        call = bench.dispatch_call(A)
        assert bench.run(call) == bench.run(call) == ()
        assert bench.client.xlen(bench.keys.batches(bench.engine)) == 1
        assert bench.total("running") == 1

    def test_one_member_that_may_not_run_stops_the_whole_batch(self, bench: Bench) -> None:
        bench.submit(A)
        bench.submit(B)
        bench.end(B, State.CANCELLED)
        assert bench.dispatch(A, B) == ("b",)
        assert bench.client.xlen(bench.keys.batches(bench.engine)) == 0
        assert bench.look(A).record.state is State.WAITING

    def test_a_running_sequence_is_not_started_a_second_time(self, bench: Bench) -> None:
        bench.submit(A)
        bench.dispatch(A)
        assert bench.dispatch(A) == ("a",)

    def test_a_member_of_an_old_attempt_or_of_another_engine_may_not_run(self, bench: Bench) -> None:
        bench.submit(A)
        bench.dispatch(A)
        assert bench.dispatch(A, index=1, attempt=1) == ("a",)
        other = bench.join("engine-1")
        assert bench.dispatch(A, index=1, engine_id=other) == ("a",)

    def test_a_gone_engine_is_told_apart(self, bench: Bench) -> None:
        bench.submit(A)
        with pytest.raises(LookupError):
            bench.dispatch(A, engine_id="engine-9.zz")
        assert bench.look(A).record.state is State.WAITING

    def test_another_leaders_fence_is_refused(self, bench: Bench) -> None:
        bench.submit(A)
        with pytest.raises(NotLeader):
            bench.dispatch(A, fence="0:old")
        assert bench.look(A).record.state is State.WAITING

    def test_descriptors_of_returned_iterations_are_trimmed(self, bench: Bench) -> None:
        bench.submit(A)
        bench.step(A)
        bench.dispatch(A, index=1, trim_before=2)
        assert bench.client.xlen(bench.keys.batches(bench.engine)) == 1


class TestCommit:
    def test_a_token_reaches_the_log_the_gateway_and_the_inbox(self, bench: Bench) -> None:
        bench.submit(A)
        assert bench.step(A, token=7) == {"a": True}
        assert bench.tokens(A) == [7]
        assert TokenEvent(id="a", index=0, entry=entry(7)) in bench.events()
        returned = [e for e in bench.inbox() if isinstance(e, Returned)]
        assert [(o.id, o.token, o.accepted, o.ended) for o in returned[0].outputs] == [("a", 7, True, False)]
        assert bench.total("generated_tokens") == 1

    def test_a_repeat_returns_the_first_answer_and_writes_nothing(self, bench: Bench) -> None:
        bench.submit(A)
        bench.dispatch(A)
        call = bench.commit_call(A)
        assert bench.run(call) == bench.run(call) == {"a": True}
        assert bench.tokens(A) == [7]
        assert len([e for e in bench.inbox() if isinstance(e, Returned)]) == 1

    def test_the_index_must_be_the_logs_length(self, bench: Bench) -> None:
        bench.submit(A)
        bench.dispatch(A)
        assert bench.commit(A, index=1) == {"a": False}
        assert bench.tokens(A) == []
        assert bench.total("stale_writes") == 1

    def test_a_cancelled_sequences_token_is_not_delivered(self, bench: Bench) -> None:
        bench.submit(A)
        bench.dispatch(A)
        bench.end(A, State.CANCELLED)
        bench.events()
        assert bench.commit(A) == {"a": False}
        assert bench.tokens(A) == []
        assert bench.events() == []
        assert bench.total("stale_writes") == 0

    def test_a_reassigned_sequence_takes_no_token_from_its_old_engine(self, bench: Bench) -> None:
        bench.submit(A)
        bench.dispatch(A)
        bench.reassign(A)
        assert bench.commit(A) == {"a": False}
        assert bench.total("stale_writes") == 1

    def test_the_last_token_completes_the_sequence(self, bench: Bench) -> None:
        bench.submit(A)
        bench.step(A, finish_reason="length")
        record = bench.look(A).record
        assert (record.state, record.finish_reason, record.n_tokens) == (State.COMPLETED, "length", 1)
        last = bench.events()[-1]
        assert isinstance(last, StateEvent)
        assert (last.state, last.n_tokens, last.finish_reason) == (State.COMPLETED, 1, "length")
        assert bench.client.zcard(bench.keys.open) == 0
        assert (bench.total("running"), bench.total("requests:completed")) == (0, 1)

    def test_a_failed_member_fails_alone(self, bench: Bench) -> None:
        bench.submit(A)
        bench.submit(B)
        bench.dispatch(A, B)
        result = bench.commit_call(A, token=None, code="internal_error", message="why")
        assert bench.run(result) == {"a": True}
        record = bench.look(A).record
        assert (record.state, record.code, record.message) == (State.FAILED, "internal_error", "why")
        assert bench.look(B).record.state is State.RUNNING

    def test_a_member_may_yield_no_token(self, bench: Bench) -> None:
        bench.submit(A)
        assert bench.step(A, token=None) == {"a": True}
        assert bench.tokens(A) == []
        assert bench.look(A).record.state is State.RUNNING

    def test_an_iteration_without_members_is_answered_but_not_recorded(self, bench: Bench) -> None:
        bench.dispatch()
        assert bench.commit() == {}
        assert [e.iteration for e in bench.inbox() if isinstance(e, Returned)] == [1]
        assert not bench.client.exists(bench.keys.iterations("engine-0"))

    def test_every_iteration_is_recorded_under_the_engines_stable_name(self, bench: Bench) -> None:
        bench.submit(A)
        bench.step(A)
        bench.step(A, index=1)
        assert bench.client.xlen(bench.keys.iterations("engine-0")) == 2
        assert bench.client.ttl(bench.keys.iterations("engine-0")) > 0
        assert bench.total("iterations:engine-0") == 2

    def test_choices_interleave_alike_in_every_replay(self, bench: Bench) -> None:
        group = make_group("g", 2)
        bench.submit(*group)
        bench.step(*group)
        bench.step(group[1], index=1)
        assert bench.look(group[0]).order == (0, 1, 1)

    def test_a_plain_request_has_no_order_list(self, bench: Bench) -> None:
        bench.submit(A)
        bench.step(A)
        assert not bench.client.exists(bench.keys.order("a"))


class TestEnd:
    def test_a_final_state_stays(self, bench: Bench) -> None:
        bench.submit(A)
        assert bench.end(A, State.CANCELLED, code="request_cancelled") is State.WAITING
        assert bench.end(A, State.FAILED, code="internal_error") is State.CANCELLED
        assert bench.look(A).record.code == "request_cancelled"
        assert bench.total("requests:cancelled") == 1
        assert bench.total("requests:failed") == 0

    def test_an_unknown_id_is_told_apart_and_leaves_the_open_set(self, bench: Bench) -> None:
        bench.client.zadd(bench.keys.open, {"a": 1})
        assert bench.end(A, State.CANCELLED) is None
        assert bench.client.zcard(bench.keys.open) == 0

    def test_the_scheduler_and_the_listeners_hear_of_it(self, bench: Bench) -> None:
        bench.submit(A)
        bench.end(A, State.CANCELLED, code="request_cancelled")
        assert Ended(id="a") in bench.inbox()
        last = bench.events()[-1]
        assert isinstance(last, StateEvent)
        assert (last.state, last.code) == (State.CANCELLED, "request_cancelled")

    def test_a_stop_string_lowers_the_count_of_a_running_sequence(self, bench: Bench) -> None:
        bench.submit(A)
        bench.step(A)
        bench.step(A, index=1)
        bench.end(A, State.COMPLETED, finish_reason="stop", n_tokens=1)
        record = bench.look(A).record
        assert (record.n_tokens, record.finish_reason) == (1, "stop")

    def test_the_count_of_a_completed_sequence_may_only_be_lowered(self, bench: Bench) -> None:
        bench.submit(A)
        bench.step(A)
        bench.step(A, index=1, finish_reason="length")
        bench.end(A, State.COMPLETED, finish_reason="stop", n_tokens=1)
        bench.end(A, State.COMPLETED, finish_reason="length", n_tokens=2)
        record = bench.look(A).record
        assert (record.n_tokens, record.finish_reason) == (1, "stop")
        assert bench.total("requests:completed") == 1

    def test_a_cancelled_sequence_is_not_completed_afterwards(self, bench: Bench) -> None:
        bench.submit(A)
        bench.end(A, State.CANCELLED)
        bench.end(A, State.COMPLETED, finish_reason="stop", n_tokens=0)
        assert bench.look(A).record.finish_reason == ""

    def test_only_if_spares_what_has_started_meanwhile(self, bench: Bench) -> None:
        bench.submit(A)
        bench.dispatch(A)
        assert bench.end(A, State.FAILED, only_if=State.WAITING) is State.RUNNING
        assert bench.look(A).record.state is State.RUNNING
        assert bench.client.zcard(bench.keys.open) == 1

    def test_a_fenced_end_needs_the_lead(self, bench: Bench) -> None:
        bench.submit(A)
        with pytest.raises(NotLeader):
            bench.end(A, State.FAILED, fence="0:old")
        assert bench.look(A).record.state is State.WAITING

    def test_a_request_counts_once_with_its_worst_outcome(self, bench: Bench) -> None:
        group = make_group("g", 3)
        bench.submit(*group)
        bench.end(group[0], State.FAILED)
        bench.end(group[1], State.CANCELLED)
        assert bench.total("requests:failed") == 0
        bench.end(group[2], State.COMPLETED)
        assert [bench.total(f"requests:{o}") for o in ("failed", "cancelled", "completed")] == [1, 0, 0]
        assert bench.client.hlen(bench.keys.groups) == 0

    def test_everything_of_an_ended_request_has_a_lifetime(self, bench: Bench) -> None:
        group = make_group("g", 2)
        bench.submit(*group)
        bench.step(*group)
        bench.end(group[0], State.CANCELLED)
        assert bench.client.ttl(bench.keys.prompt("g", 0)) == -1
        bench.end(group[1], State.CANCELLED)
        names = [k for g in ("*:g", "*:g:*", "*:g.*") for k in bench.client.scan_iter(g)]
        assert len(names) == 6
        assert all(bench.client.ttl(k) > 0 for k in names)


class TestReassign:
    def test_the_sequence_waits_again_with_its_log_under_the_next_attempt(self, bench: Bench) -> None:
        bench.submit(A)
        bench.step(A)
        bench.events()
        assert bench.reassign(A, strike=True)
        record = bench.look(A).record
        assert (record.state, record.attempt, record.engine) == (State.WAITING, 1, "")
        assert (record.arrival, record.strikes, record.n_tokens) == (1, 1, 1)
        assert Reassigned(id="a", attempt=1) in bench.inbox()
        assert bench.events() == [StateEvent(id="a", state=State.WAITING, attempt=1)]
        assert bench.total("running") == 0

    def test_it_happens_once(self, bench: Bench) -> None:
        bench.submit(A)
        bench.dispatch(A)
        assert bench.reassign(A)
        assert not bench.reassign(A)
        assert bench.look(A).record.attempt == 1

    def test_it_needs_this_engine_this_attempt_and_a_running_sequence(self, bench: Bench) -> None:
        bench.submit(A)
        assert not bench.reassign(A)
        bench.dispatch(A)
        assert not bench.reassign(A, engine_id="engine-9.zz")
        assert not bench.reassign(A, attempt=1)
        bench.end(A, State.CANCELLED)
        assert not bench.reassign(A)
        assert bench.look(A).record.state is State.CANCELLED

    def test_another_leaders_fence_is_refused(self, bench: Bench) -> None:
        bench.submit(A)
        bench.dispatch(A)
        with pytest.raises(NotLeader):
            bench.reassign(A, fence="0:old")
        assert bench.look(A).record.attempt == 0


class TestAttach:
    def test_record_and_log_are_read_in_one_step_from_an_index(self, bench: Bench) -> None:
        bench.submit(A)
        bench.step(A, token=7)
        bench.step(A, token=8, index=1)
        found = bench.look(A, index=1, gateway_id="other")
        assert found.entries == (entry(8),)
        assert found.record.n_tokens == 2
        assert found.record.listeners == (GATEWAY, "other")

    def test_every_listener_hears(self, bench: Bench) -> None:
        bench.submit(A, gateway_id="other")
        bench.look(A, gateway_id=GATEWAY)
        bench.look(A, gateway_id=GATEWAY)
        bench.step(A)
        heard = bench.events()
        assert [e for e in heard if isinstance(e, TokenEvent)] == [
            TokenEvent(id="a", index=0, entry=entry(7))
        ]

    def test_detach_says_how_many_are_left(self, bench: Bench) -> None:
        bench.submit(A)
        bench.look(A, gateway_id="other")

        def detach(gateway: str) -> int:
            left: int = bench.run(request_pool.detach(bench.keys, sequence_id="a", gateway_id=gateway))
            return left

        assert detach(GATEWAY) == 1
        assert detach(GATEWAY) == 1
        assert detach("other") == 0
        bench.step(A)
        assert bench.events() == []

    def test_an_unknown_id_stays_unknown(self, bench: Bench) -> None:
        call = request_pool.attach(bench.keys, sequence_id="z", group="z", gateway_id=GATEWAY)
        assert bench.run(call) is None
        assert bench.run(request_pool.detach(bench.keys, sequence_id="z", gateway_id=GATEWAY)) == 0
        assert not bench.client.exists(bench.keys.request("z"))


class TestRestore:
    @staticmethod
    def restore(bench: Bench, shown: list[str]) -> str:
        call = request_pool.restore(
            bench.keys, request=A, prompt=[1, 2], shown=shown, gateway_id=GATEWAY, record_ttl=600
        )
        return str(bench.run(call))

    def test_a_missing_record_waits_again_with_what_was_shown(self, bench: Bench) -> None:
        assert self.restore(bench, [entry(7)]) == "restored"
        record = bench.look(A).record
        assert (record.state, record.n_tokens, record.request) == (State.WAITING, 1, A)
        assert bench.client.zcard(bench.keys.open) == 1
        assert self.restore(bench, [entry(7)]) == "intact"
        bench.dispatch(A)
        bench.end(A, State.COMPLETED)
        assert bench.total("requests:completed") == 1

    def test_shown_tokens_that_the_log_lost_come_back(self, bench: Bench) -> None:
        bench.submit(A)
        bench.step(A, token=7)
        assert self.restore(bench, [entry(7), entry(8)]) == "restored"
        assert bench.tokens(A) == [7, 8]

    def test_a_log_that_is_ahead_is_left_alone(self, bench: Bench) -> None:
        bench.submit(A)
        bench.step(A, token=7)
        assert self.restore(bench, []) == "intact"
        assert bench.tokens(A) == [7]

    def test_two_texts_are_never_spliced(self, bench: Bench) -> None:
        bench.submit(A)
        bench.step(A, token=7)
        assert self.restore(bench, [entry(8), entry(9)]) == "contradiction"
        assert bench.tokens(A) == [7]

    def test_an_ended_sequence_gets_no_more_tokens(self, bench: Bench) -> None:
        bench.submit(A)
        bench.end(A, State.CANCELLED)
        self.restore(bench, [entry(7)])
        assert bench.tokens(A) == []


class TestLead:
    def test_one_leads_and_a_repeat_has_the_same_fence(self, bench: Bench) -> None:
        assert bench.run(lease.acquire(bench.keys, token="first")) == bench.fence
        assert bench.run(lease.acquire(bench.keys, token="second")) == ""

    def test_every_lead_has_a_fence_of_its_own(self, bench: Bench) -> None:
        assert bench.run(lease.resign(bench.keys, fence=bench.fence))
        fence = bench.run(lease.acquire(bench.keys, token="first"))
        assert fence not in ("", bench.fence)
        assert not bench.run(lease.renew(bench.keys, fence=bench.fence))
        assert not bench.run(lease.resign(bench.keys, fence=bench.fence))
        assert bench.run(lease.renew(bench.keys, fence=fence))
        assert 0 < bench.client.pttl(bench.keys.leader) <= lease.LEASE_SECONDS * 1000
