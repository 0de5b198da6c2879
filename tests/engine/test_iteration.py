"""Rules of one iteration: ends, releases, and failures that stay with their member."""

from typing import Any

import pytest
import torch

from services.engine.iteration import Executor
from services.engine.model.load import LoadedModel
from services.engine.request_level import execute_until_done
from shared.protocol.batch import BatchDescriptor, ContinuingEntry
from shared.protocol.token import TokenEntry
from shared.protocol.wire import decode
from tests.support.engine_driver import Driver, alone, sampling
from tests.support.tiny_models import EOS_ID, VOCAB_SIZE

PROMPTS = {"a": (11, 12, 13), "b": (21,), "c": (31, 32), "d": (41, 42, 43, 44), "e": (51, 52)}


@pytest.fixture
def driver(llama: LoadedModel) -> Driver:
    return Driver(llama, test_faults=True)


def fill(driver: Driver, **faults: str) -> Driver:
    for name, prompt in PROMPTS.items():
        driver.add(name, prompt, fault=faults.get(name, ""))
    return driver


def unharmed(driver: Driver, names: str) -> None:
    """The named jobs gave exactly what they give alone."""
    for name in names:
        assert driver.jobs[name].output == alone(driver.model, PROMPTS[name], sampling()).output


def test_a_sequence_ends_at_its_token_limit(driver: Driver) -> None:
    job = driver.add("a", (5, 6), sampling(3))
    driver.run()
    assert (len(job.output), job.finish) == (3, "length")


def test_end_of_sequence_ends_it_and_is_its_last_token(driver: Driver) -> None:
    job = driver.add("a", (5, 6), sampling(9, ignore_eos=False, logit_bias={EOS_ID: 100.0}))
    driver.run()
    assert (job.output, job.finish) == ([EOS_ID], "stop")


def test_ignore_eos_runs_on(driver: Driver) -> None:
    job = driver.add("a", (5, 6), sampling(4, logit_bias={EOS_ID: 100.0}))
    driver.run()
    assert (job.output, job.finish) == ([EOS_ID] * 4, "length")


def test_stop_token_ids_end_it_even_where_eos_is_ignored(driver: Driver) -> None:
    job = driver.add("a", (5, 6), sampling(4, stop_token_ids=(77,), logit_bias={77: 100.0}))
    driver.run()
    assert (job.output, job.finish) == ([77], "stop")


def test_min_tokens_holds_every_end_back(driver: Driver) -> None:
    bias = {EOS_ID: 100.0, 77: 99.0}
    params = sampling(9, ignore_eos=False, stop_token_ids=(77,), min_tokens=3, logit_bias=bias)
    job = driver.add("a", (5, 6), params)
    driver.run()
    assert job.output[-1] == EOS_ID
    assert len(job.output) == 4
    assert not {EOS_ID, 77} & set(job.output[:3])


def test_a_stop_on_the_last_allowed_token_is_a_stop(driver: Driver) -> None:
    job = driver.add("a", (5, 6), sampling(1, ignore_eos=False, logit_bias={EOS_ID: 100.0}))
    driver.run()
    assert job.finish == "stop"


def test_the_log_entry_carries_token_and_logprobs(driver: Driver) -> None:
    driver.add("a", (5, 6), sampling(2, logprobs=3))
    output = driver.step().outputs[0]
    entry = decode(TokenEntry, output.entry)
    assert entry.token == output.token
    assert entry.logprob is not None
    assert len(entry.top) == 3
    assert entry.top[0] == (entry.token, entry.logprob)


def test_releases_come_before_anything_else(llama: LoadedModel) -> None:
    driver = Driver(llama, n_slots=12)
    driver.add("a", (5, 6), sampling(10))
    driver.step()
    driver.evict("a")
    job = driver.add("b", (7, 8), sampling(10))
    driver.step(["b"])
    assert job.output
    assert driver.executor.kv.n_reserved == 12


def test_accounts_return_to_nothing(driver: Driver) -> None:
    fill(driver).run()
    assert len(driver.executor.kv) == 0
    assert driver.executor.sequences == {}


def test_a_first_entry_replaces_what_an_earlier_attempt_left(driver: Driver) -> None:
    job = driver.add("a", PROMPTS["a"])
    driver.step()
    job.held = False
    driver.run()
    unharmed(driver, "a")


@pytest.mark.parametrize("culprit", "abcde")
@pytest.mark.parametrize("stage", ["prefill", "decode:2", "sample", "publish"])
def test_a_failing_member_fails_alone(driver: Driver, culprit: str, stage: str) -> None:
    fill(driver, **{culprit: f"{stage}=raise"}).run()
    job = driver.jobs[culprit]
    assert job.code == "engine_failed"
    assert len(job.output) == (2 if stage == "decode:2" else 0)
    unharmed(driver, "abcde".replace(culprit, ""))
    assert len(driver.executor.kv) == 0


def test_two_failing_members_fail_and_the_others_go_on(driver: Driver) -> None:
    fill(driver, b="decode:1=raise", d="decode:1=oom").run()
    assert (driver.jobs["b"].code, driver.jobs["d"].code) == ("engine_failed", "not_ready")
    assert "memory" in driver.jobs["d"].message
    unharmed(driver, "ace")


def test_a_fault_is_honoured_only_where_faults_are_switched_on(llama: LoadedModel) -> None:
    driver = fill(Driver(llama), a="prefill=raise")
    driver.run()
    unharmed(driver, "abcde")


def test_a_sleep_holds_the_iteration_once(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("shared.faults.time.sleep", slept.append)
    fill(driver, c="decode:1=sleep:1.5,decode:1=raise").run()
    assert slept == [1.5]
    unharmed(driver, "abde")


def test_a_passing_failure_fails_nobody(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = Executor._forward, []

    def forward(self: Executor, running: Any) -> torch.Tensor:
        calls.append(len(running))
        if len(calls) == 2:
            raise RuntimeError("once")
        return real(self, running)

    monkeypatch.setattr(Executor, "_forward", forward)
    fill(driver).run()
    assert calls[:4] == [5, 5, 2, 3]
    unharmed(driver, "abcde")


def test_a_failure_deep_in_the_model_leaves_the_kv_as_it_was(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(driver)
    driver.step()
    last = driver.model.network.model.layers[-1]
    hook = last.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("layer")))
    before = {name: driver.executor.kv.get(name).length for name in PROMPTS}
    jobs = [job.entry() for job in driver.jobs.values()]
    with pytest.raises(RuntimeError, match="layer"):
        driver.executor._forward([driver.executor._enter(entry) for entry in jobs])
    hook.remove()
    assert {name: driver.executor.kv.get(name).length for name in PROMPTS} == before
    driver.run()
    unharmed(driver, "abcde")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_fail_their_member_alone(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    fill(driver)
    driver.step()
    real = Executor._forward

    def forward(self: Executor, running: Any) -> torch.Tensor:
        logits = real(self, running).clone()
        logits[[one.entry.id for one in running].index("c"), 5] = value
        return logits

    with monkeypatch.context() as patch:
        patch.setattr(Executor, "_forward", forward)
        driver.step()
    driver.run()
    assert driver.jobs["c"].code == "engine_failed"
    assert "finite" in driver.jobs["c"].message
    unharmed(driver, "abde")


def test_a_token_outside_the_vocabulary_fails_its_member(driver: Driver) -> None:
    job = driver.add("a", (5, VOCAB_SIZE))
    other = driver.add("b", PROMPTS["b"])
    driver.run()
    assert job.code == "invalid_value"
    assert other.output


def test_no_room_fails_the_member_and_says_so(llama: LoadedModel) -> None:
    driver = Driver(llama, n_slots=12)
    first, second = driver.add("a", (5, 6), sampling(8)), driver.add("b", (5, 6), sampling(8))
    driver.run()
    assert len(first.output) == 8
    assert second.code == "engine_failed"
    assert "no room" in second.message


def test_an_unknown_member_is_answered_with_a_failure(driver: Driver) -> None:
    entry = ContinuingEntry(id="x", attempt=2, last_token=3, position=4, index=1)
    executed = driver.executor.execute_iteration(BatchDescriptor(iteration=1, fence="", entries=(entry,)))
    output = executed.outputs[0]
    assert (output.id, output.attempt, output.index, output.code) == ("x", 2, 1, "engine_failed")
    assert executed.members == ()
    assert executed.groups == (("x", 0),)


def test_a_member_whose_length_disagrees_fails_instead_of_going_astray(driver: Driver) -> None:
    job = driver.add("a", (5, 6))
    driver.step()
    job.output.append(9)
    executed = driver.executor.execute_iteration(
        BatchDescriptor(iteration=9, fence="", entries=(job.entry(),))
    )
    assert executed.outputs[0].code == "engine_failed"


def test_releases_alone_run_nothing(driver: Driver) -> None:
    driver.add("a", (5, 6))
    driver.step()
    passes = len(driver.model.seen)
    executed = driver.executor.execute_iteration(BatchDescriptor(iteration=2, fence="", releases=("a", "z")))
    assert executed.outputs == ()
    assert len(driver.model.seen) == passes
    assert len(driver.executor.kv) == 0


def test_the_report_names_what_is_held(driver: Driver) -> None:
    driver.add("a", (5, 6, 7), sampling(4))
    driver.step()
    driver.step()
    (held,) = driver.executor.held()
    assert (held.id, held.attempt, held.n_kv, held.reserved_slots) == ("a", 0, 4, 7)


def test_warm_up_leaves_nothing_behind(driver: Driver) -> None:
    driver.executor.warm_up()
    assert len(driver.model.seen) == 2
    assert driver.executor.held() == ()


def test_a_request_level_batch_gives_the_same_tokens_all_at_once(driver: Driver) -> None:
    fill(driver, d="decode:2=raise")
    entries = tuple(job.entry() for job in driver.jobs.values())
    descriptor = BatchDescriptor(iteration=1, fence="", entries=entries, until_done=True)

    executed, n_passes = execute_until_done(driver.executor, descriptor)

    for name in "abce":
        tokens = [output.token for output in executed.outputs if output.id == name]
        assert tokens == alone(driver.model, PROMPTS[name], sampling()).output
    assert [output.code for output in executed.outputs if output.id == "d"] == ["", "", "engine_failed"]
    assert n_passes == 8
    assert len(executed.groups) == len(executed.outputs)
