"""Greedy tokens and logits are those of `transformers`' own `generate`, whoever else runs."""

import random
from collections.abc import Sequence
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from services.engine.model.demo import ensure_demo_model
from services.engine.model.load import LoadedModel, load_model
from tests.support.engine_driver import Driver, Job, alone, sampling

N_PROMPTS, IN_FLIGHT = 32, 16
NEAR_TIE = 1e-3
TOLERANCE = 1e-4
"""For each row's largest difference from `transformers` computing in float64. In float32 the library has two
ways to the same logits, with and without its cache, which lie up to 1e-4 from float64 themselves on the demo
model: two roundings add up, so of that comparison one row in a hundred may be over, up to twice as far."""
FAR_SHARE = 0.01


def english(directory: Path) -> list[int]:
    """A long text's token ids: what a trained model is made for."""
    text = " ".join(topics.values())[:40_000]
    return list(Tokenizer.from_file(str(directory / "tokenizer.json")).encode(text).ids)


def mixed_jobs(
    driver: Driver, rng: random.Random, *, most_new: int, text: Sequence[int] = ()
) -> dict[str, int]:
    """32 prompts of 1 to 300 tokens; returns each one's arrival, in iterations."""
    lengths = [1, 2, 300, *(rng.randint(1, 300) for _ in range(N_PROMPTS - 3))]
    arrivals = {}
    for i, length in enumerate(lengths):
        if text:
            start = rng.randrange(len(text) - length)
            prompt = list(text[start : start + length])
        else:
            prompt = [rng.randrange(3, driver.model.vocab_size) for _ in range(length)]
        driver.add(f"r{i}", prompt, sampling(rng.randint(1, most_new)))
        arrivals[f"r{i}"] = rng.randint(0, 12)
    return arrivals


def run_as_they_arrive(driver: Driver, arrivals: dict[str, int]) -> int:
    """First come, first served, 16 in flight; returns the largest batch."""
    order, tick, largest = sorted(arrivals, key=lambda name: arrivals[name]), 0, 0
    while any(job.running for job in driver.jobs.values()):
        here = [name for name in order if arrivals[name] <= tick and driver.jobs[name].running]
        if here:
            largest = max(largest, len(driver.step(here[:IN_FLIGHT]).outputs))
        tick += 1
    return largest


@torch.no_grad()
def count_near_ties(job: Job, reference: Any, differences: list[float]) -> int:
    """Compare one job with `generate`, up to the first near-tie that went the other way.

    Returns 1 if there was one, 0 if all tokens are equal.
    """
    made = reference.generate(
        torch.tensor([job.prompt]),
        max_new_tokens=job.params.max_new_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    expected = made.sequences[0, len(job.prompt) :].tolist()
    whole = reference(made.sequences[:, :-1]).logits[0, len(job.prompt) - 1 :]
    for ours, theirs, got, cached, uncached in zip(
        job.output, expected, job.logits, made.logits, whole, strict=True
    ):
        differences.append(min(float((got - row).abs().max()) for row in (cached[0], uncached)))
        if ours != theirs:
            best = cached[0].topk(2).values
            assert best[0] - best[1] < NEAR_TIE, "a token differs that was no near-tie"
            return 1
    return 0


@torch.no_grad()
def check_rows(job: Job, exact: Any) -> None:
    """Every row of a job's logits against the library in float64 on the same tokens."""
    tokens = torch.tensor([[*job.prompt, *job.output[:-1]]])
    rows = exact(tokens).logits[0, len(job.prompt) - 1 :]
    assert len(rows) == len(job.logits)
    for got, row in zip(job.logits, rows, strict=True):
        assert float((got - row).abs().max()) < TOLERANCE


def compare(
    model: LoadedModel,
    directory: Path,
    *,
    most_new: int,
    seed: int,
    text: Sequence[int] = (),
    far_share: float = 0.0,
) -> int:
    driver = Driver(model)
    arrivals = mixed_jobs(driver, random.Random(seed), most_new=most_new, text=text)
    assert run_as_they_arrive(driver, arrivals) == IN_FLIGHT
    exact = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64)
    for job in driver.jobs.values():
        check_rows(job, exact)
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    differences: list[float] = []
    ties = sum(count_near_ties(job, reference, differences) for job in driver.jobs.values())
    far = [difference for difference in differences if difference >= TOLERANCE]
    assert max(differences) < 2 * TOLERANCE
    assert len(far) <= far_share * len(differences)
    return ties


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_small_random_model_gives_generates_tokens(family: str, request: pytest.FixtureRequest) -> None:
    model, directory = request.getfixturevalue(family), request.getfixturevalue(f"{family}_dir")
    assert compare(model, directory, most_new=40, seed=1) <= 1


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo_model_gives_generates_tokens() -> None:
    directory = ensure_demo_model()
    text = english(directory)
    ties = compare(load_model(directory), directory, most_new=10, seed=2, text=text, far_share=FAR_SHARE)
    assert ties <= 1


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo_models_logits_are_bitwise_the_same_in_company() -> None:
    model = load_model(ensure_demo_model())
    rng = random.Random(4)
    prompts = [[rng.randrange(3, model.vocab_size) for _ in range(rng.randint(1, 30))] for _ in range(16)]
    driver = Driver(model)
    for i, prompt in enumerate(prompts):
        driver.add(f"r{i}", prompt, sampling(4))
        if i in (3, 9):
            driver.step()
    driver.run()
    for i in (0, 5, 15):
        single = alone(model, prompts[i], sampling(4))
        assert all(map(torch.equal, driver.jobs[f"r{i}"].logits, single.logits))
        assert driver.jobs[f"r{i}"].output == single.output
