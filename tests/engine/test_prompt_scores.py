"""The scores of a prompt's own tokens are the model's, in pieces or whole, alone or in company."""

import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from services.engine import prompt_scores
from services.engine.model.load import LoadedModel
from shared.protocol.result import Phase
from shared.protocol.token import TokenEntry
from shared.protocol.wire import decode
from tests.support.engine_driver import Driver, sampling

PROMPT = [random.Random(5).randrange(3, 250) for _ in range(23)]
SCORED = sampling(3, logprobs=2, prompt_logprobs=True)


def scored(driver: Driver, name: str) -> tuple[TokenEntry, ...]:
    """Run one iteration and return the prompt scores in the named job's entry."""
    (output,) = (one for one in driver.step().outputs if one.id == name)
    return decode(TokenEntry, output.entry).prompt


@pytest.mark.parametrize("piece", [256, 5, 1])
def test_prompt_scores_are_those_of_transformers(
    llama: LoadedModel, llama_dir: Path, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_scores, "PIECE", piece)
    driver = Driver(llama)
    driver.add("r", PROMPT, SCORED)
    entries = scored(driver, "r")
    reference = AutoModelForCausalLM.from_pretrained(llama_dir, dtype=torch.float32)
    with torch.no_grad():
        rows = reference(torch.tensor([PROMPT])).logits[0].log_softmax(-1)
    assert [entry.token for entry in entries] == PROMPT
    assert (entries[0].logprob, entries[0].top) == (None, ())
    for entry, row in zip(entries[1:], rows, strict=False):
        assert entry.logprob == pytest.approx(float(row[entry.token]), abs=1e-4)
        best = row.topk(2).values.tolist()
        assert [logprob for _, logprob in entry.top] == pytest.approx(best, abs=1e-4)


def test_company_changes_no_bit_of_the_scores_and_they_come_once(llama: LoadedModel) -> None:
    single, crowd = Driver(llama), Driver(llama)
    single.add("r", PROMPT, SCORED)
    crowd.add("other", [7, 8, 9], sampling(6))
    crowd.step()
    crowd.add("r", PROMPT, SCORED)
    assert scored(crowd, "r") == scored(single, "r")
    assert scored(crowd, "r") == ()
    assert crowd.jobs["r"].output[0] == single.jobs["r"].output[0]


def test_a_scored_prompt_is_one_prefill_of_all_its_tokens_and_goes_on_as_any_other(
    llama: LoadedModel,
) -> None:
    driver, plain = Driver(llama), Driver(llama)
    driver.add("r", PROMPT, SCORED)
    (member,) = driver.step().members
    assert (member.phase, member.tokens) == (Phase.PREFILL, len(PROMPT))
    driver.run()
    plain.add("r", PROMPT, sampling(3))
    plain.run()
    assert driver.jobs["r"].output == plain.jobs["r"].output


def test_after_a_move_before_the_first_token_they_are_scored_again(llama: LoadedModel) -> None:
    first, second = Driver(llama), Driver(llama)
    for driver in (first, second):
        driver.add("r", PROMPT, SCORED)
    entries = scored(first, "r")
    assert scored(second, "r") == entries
    second.evict("r")
    assert scored(second, "r") == (), "the log has them with its first entry"


def test_a_prompt_of_one_token_has_one_entry_without_a_score(llama: LoadedModel) -> None:
    driver = Driver(llama)
    driver.add("r", [5], SCORED)
    assert scored(driver, "r") == (TokenEntry(token=5),)


def test_scores_that_are_not_finite_fail_their_request_alone(
    llama: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(llama)
    driver.add("other", [7, 8, 9], sampling(2))
    driver.add("r", PROMPT, SCORED)
    forward = type(driver.model).forward

    def poisoned(self: object, batch: object) -> torch.Tensor:
        logits = forward(self, batch)  # type: ignore[arg-type]
        return logits * float("nan") if len(logits) == len(PROMPT) - 1 else logits

    monkeypatch.setattr(type(driver.model), "forward", poisoned)
    driver.step()
    assert (driver.jobs["r"].code, "not finite" in driver.jobs["r"].message) == ("engine_failed", True)
    assert len(driver.jobs["other"].output) == 1
    assert driver.executor.kv.n_reserved == driver.jobs["other"].reserved_slots
