"""What else runs changes no bit of a request's logits, and no token of a seeded one."""

import random

import pytest
import torch

from services.engine.model.load import LoadedModel
from shared.protocol.request import SamplingParams
from tests.support.engine_driver import Driver, alone, sampling
from tests.support.tiny_models import VOCAB_SIZE

SEEDED = sampling(12, temperature=0.9, top_p=0.95, top_k=50, seed=7)


def random_prompt(rng: random.Random, most: int = 60) -> list[int]:
    return [rng.randrange(3, VOCAB_SIZE) for _ in range(rng.randint(1, most))]


def in_company(
    model: LoadedModel, prompt: list[int], params: SamplingParams, *, n_others: int, rng: random.Random
) -> Driver:
    """Others that join before, with and after the request, and leave at other times."""
    driver = Driver(model)
    arrivals = sorted([(rng.randint(0, 12), f"other-{i}") for i in range(n_others)] + [(4, "subject")])
    for tick in range(40):
        while arrivals and arrivals[0][0] <= tick:
            name = arrivals.pop(0)[1]
            if name == "subject":
                driver.add(name, prompt, params)
            else:
                driver.add(name, random_prompt(rng), sampling(rng.randint(1, 16), temperature=1.0, seed=3))
        driver.step()
    driver.run()
    return driver


@pytest.mark.parametrize("n_others", range(1, 16))
def test_logits_are_bitwise_the_same_alone_and_in_company(model: LoadedModel, n_others: int) -> None:
    rng = random.Random(n_others)
    prompt, params = random_prompt(rng), sampling(12)

    job = in_company(model, prompt, params, n_others=n_others, rng=rng).jobs["subject"]

    single = alone(model, prompt, params)
    assert job.output == single.output
    assert len(job.logits) == len(single.logits) == 12
    assert all(map(torch.equal, job.logits, single.logits))


@pytest.mark.parametrize("n_others", [1, 7, 15])
def test_seeded_sampling_is_the_same_alone_and_in_company(model: LoadedModel, n_others: int) -> None:
    rng = random.Random(100 + n_others)
    prompt = random_prompt(rng)

    job = in_company(model, prompt, SEEDED, n_others=n_others, rng=rng).jobs["subject"]

    assert job.output == alone(model, prompt, SEEDED).output


def test_seeded_sampling_goes_on_the_same_after_a_new_prefill(model: LoadedModel) -> None:
    rng = random.Random(5)
    prompt = random_prompt(rng)
    driver = Driver(model)
    job = driver.add("moved", prompt, SEEDED)
    for _ in range(5):
        driver.step()

    driver.evict("moved")
    driver.run()

    assert job.output == alone(model, prompt, SEEDED).output


def test_other_samples_of_a_prompt_draw_other_streams(model: LoadedModel) -> None:
    first = alone(model, (5, 6, 7), SEEDED)
    second = alone(model, (5, 6, 7), SEEDED.model_copy(update={"sample": 1}))
    assert first.output != second.output
