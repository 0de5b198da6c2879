"""Scores and probabilities against the logits processors of `transformers`, row by row to 1e-4.

Presence and frequency penalties, which `transformers` lacks, are held against OpenAI's formula.
"""

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from services.engine.model.load import LoadedModel
from services.engine.sampling import Row, adjust, log_softmax, probabilities, sample
from shared.protocol.request import SamplingParams
from tests.support.engine_driver import Driver, alone
from tests.support.engine_driver import sampling as params_of
from tests.support.tiny_models import VOCAB_SIZE

TOLERANCE = 1e-4
ROWS = 40


def params(**changes: Any) -> SamplingParams:
    return SamplingParams.model_validate({"max_new_tokens": 8, "temperature": 1.0, "seed": 5} | changes)


def rows(seed: int, size: int = 1000) -> list[tuple[Row, list[int], list[int]]]:
    """Logits, a prompt and an output each; flat, peaked and shifted rows."""
    rng, draw = random.Random(seed), np.random.default_rng(seed)
    found = []
    for _ in range(ROWS):
        row = (draw.normal(0, rng.choice((0.2, 2, 8)), size) + rng.uniform(-30, 30)).astype(np.float32)
        prompt = [rng.randrange(size) for _ in range(rng.randint(1, 50))]
        output = [rng.choice([*prompt, rng.randrange(size)]) for _ in range(rng.randint(0, 50))]
        found.append((row, prompt, output))
    return found


def processed(processors: Sequence[Any], row: Row, ids: Sequence[int]) -> Row:
    """[V]: what a list of the library's processors makes of a row."""
    chain: Any = LogitsProcessorList(processors)
    scores: torch.Tensor = chain(torch.tensor([list(ids)]), torch.from_numpy(row.astype(np.float64))[None])
    result: Row = scores[0].numpy()
    return result


def soft(scores: Row) -> Row:
    result: Row = torch.softmax(torch.from_numpy(scores), dim=-1).numpy()
    return result


@pytest.mark.parametrize("penalty", [0.3, 0.9, 1.0, 1.3, 2.0])
def test_repetition_penalty_is_that_of_transformers(penalty: float) -> None:
    for row, prompt, output in rows(1):
        expected = processed([RepetitionPenaltyLogitsProcessor(penalty)], row, prompt + output)
        ours = adjust(row, params(repetition_penalty=penalty), prompt, output)
        np.testing.assert_allclose(ours, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(("presence", "frequency"), [(1.5, 0.0), (0.0, 0.7), (-2.0, 2.0), (2.0, -0.3)])
def test_presence_and_frequency_penalties_follow_openais_formula(presence: float, frequency: float) -> None:
    """mu[j] - c[j] * frequency - (c[j] > 0) * presence, c counting the output alone."""
    for row, prompt, output in rows(2):
        counts = Counter(output)
        expected = [
            float(score) - counts[j] * frequency - (counts[j] > 0) * presence for j, score in enumerate(row)
        ]
        asked = params(presence_penalty=presence, frequency_penalty=frequency)
        np.testing.assert_allclose(adjust(row, asked, prompt, output), expected, atol=TOLERANCE, rtol=0)


def test_logit_bias_is_added_after_the_penalties() -> None:
    for row, prompt, output in rows(3):
        bias = {prompt[0]: -100.0, 7: 3.5, 0: 100.0}
        added: Any = [[[i], value] for i, value in bias.items()]
        penalty = RepetitionPenaltyLogitsProcessor(1.4)
        expected = processed([penalty, SequenceBiasLogitsProcessor(added)], row, prompt + output)
        ours = adjust(row, params(repetition_penalty=1.4, logit_bias=bias), prompt, output)
        np.testing.assert_allclose(ours, expected, atol=TOLERANCE, rtol=0)


FILTERS: list[dict[str, Any]] = [
    {"temperature": 0.3},
    {"temperature": 2.0},
    {"top_k": 1},
    {"top_k": 40},
    {"top_k": 5000},
    {"top_p": 0.1},
    {"top_p": 0.95},
    {"min_p": 0.02},
    {"min_p": 1.0},
    {"temperature": 0.7, "top_k": 50, "top_p": 0.9, "min_p": 0.05},
    {"temperature": 1.7, "top_k": 20, "top_p": 0.5},
    {"temperature": 1.2, "top_p": 0.8, "min_p": 0.1, "repetition_penalty": 1.2},
]


def warpers(asked: SamplingParams) -> list[Any]:
    """The library's own processors for these parameters, in the order `generate` uses."""
    chain: list[Any] = [RepetitionPenaltyLogitsProcessor(asked.repetition_penalty)]
    chain.append(TemperatureLogitsWarper(asked.temperature))
    if asked.top_k:
        chain.append(TopKLogitsWarper(asked.top_k))
    if asked.top_p < 1:
        chain.append(TopPLogitsWarper(asked.top_p))
    if asked.min_p:
        chain.append(MinPLogitsWarper(asked.min_p))
    return chain


@pytest.mark.parametrize(
    "changes", FILTERS, ids=lambda changes: " ".join(f"{k}={v}" for k, v in changes.items())
)
def test_filters_leave_what_those_of_transformers_leave(changes: dict[str, Any]) -> None:
    asked = params(**changes)
    for row, prompt, output in rows(4):
        expected = soft(processed(warpers(asked), row, prompt + output))
        ours = probabilities(adjust(row, asked, prompt, output), asked)
        np.testing.assert_allclose(ours, expected, atol=TOLERANCE, rtol=0)
        assert set(np.flatnonzero(ours > 1e-12)) == set(np.flatnonzero(expected > 1e-12))


def test_a_token_is_drawn_from_exactly_these_probabilities() -> None:
    """The uniform number falls into the drawn token's part of the distribution, in token-id order."""
    from services.engine.sampling import uniform

    asked = params(temperature=1.1, top_k=30, top_p=0.9, repetition_penalty=1.1)
    for i, (row, prompt, output) in enumerate(rows(5)):
        token = sample(row, asked, index=i, prompt=prompt, output=output).token
        share = probabilities(adjust(row, asked, prompt, output), asked)
        number = uniform(asked.seed, asked.sample, i)
        assert share[:token].sum() - 1e-9 <= number <= share[: token + 1].sum() + 1e-9


def test_logprobs_are_the_models_own_whatever_is_asked_beside_them() -> None:
    for i, (row, prompt, output) in enumerate(rows(6)):
        asked = params(logprobs=20, temperature=0.4, top_k=3, presence_penalty=1.0)
        choice = sample(row, asked, index=i, prompt=prompt, output=output)
        expected = torch.log_softmax(torch.from_numpy(row.astype(np.float64)), dim=-1)
        best = torch.topk(expected, 20)
        assert choice.logprob == pytest.approx(float(expected[choice.token]), abs=TOLERANCE)
        assert [token for token, _ in choice.top] == best.indices.tolist()
        np.testing.assert_allclose([value for _, value in choice.top], best.values.numpy(), atol=TOLERANCE)
        assert np.exp(log_softmax(row)).sum() == pytest.approx(1.0)


# -- places where nothing sensible can be drawn


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_when_every_token_is_banned_the_request_fails_instead_of_drawing_a_banned_one(
    temperature: float,
) -> None:
    row = np.zeros(5, dtype=np.float32)
    asked = params(temperature=temperature)
    with pytest.raises(ValueError, match="every token of the vocabulary is banned"):
        sample(row, asked, index=0, prompt=(1,), output=(), banned=range(5))
    assert sample(row, asked, index=0, prompt=(1,), output=(), banned=range(4)).token == 4


def test_a_bias_against_every_token_leaves_their_order() -> None:
    row = np.array([0.0, 2.0, 1.0], dtype=np.float32)
    asked = params(temperature=0.0, logit_bias=dict.fromkeys(range(3), -100.0))
    assert sample(row, asked, index=0, prompt=(), output=()).token == 1


ALL_BANNED = params_of(4, min_tokens=4, stop_token_ids=tuple(range(VOCAB_SIZE)))


def test_a_member_with_everything_banned_fails_alone(llama: LoadedModel) -> None:
    prompts = {name: [5 + i, 6, 7] for i, name in enumerate("abc")}
    expected = {name: alone(llama, prompt, params_of(6)).output for name, prompt in prompts.items()}
    driver = Driver(llama)
    jobs = {name: driver.add(name, prompt, params_of(6)) for name, prompt in prompts.items()}
    banned = driver.add("banned", [9, 9], ALL_BANNED)
    driver.run()
    assert (banned.code, banned.output) == ("engine_failed", [])
    assert "every token of the vocabulary is banned" in banned.message
    assert {name: job.output for name, job in jobs.items()} == expected


OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0.9, "seed": 3, "repetition_penalty": 1.3},
    {"temperature": 0.9, "seed": 3, "presence_penalty": 1.5, "frequency_penalty": -0.5},
    {"temperature": 1.0, "seed": 3, "logit_bias": {5: 8.0}, "logprobs": 5},
    {"temperature": 0.9, "seed": 3, "top_k": 7},
    {"temperature": 0.9, "seed": 3, "top_p": 0.6},
    {"temperature": 0.9, "seed": 3, "min_p": 0.2, "min_tokens": 5},
    {"temperature": 0.0, "logprobs": 0},
    {},
]


@pytest.mark.parametrize("late", [0, 1, 3])
def test_a_members_options_never_reach_its_neighbours(llama: LoadedModel, late: int) -> None:
    """All kinds of settings in one batch, joining some iterations apart: each gets what it gets alone."""
    asked = [params_of(10, **changes) for changes in OPTIONS]
    prompts = [[3 + i, 11, 12 + i] * (1 + i) for i in range(len(asked))]
    driver = Driver(llama)
    jobs = []
    for i, one in enumerate(asked):
        jobs.append(driver.add(f"s{i}", prompts[i], one))
        for _ in range(late):
            driver.step()
    driver.run()
    for job, one in zip(jobs, asked, strict=True):
        single = alone(llama, job.prompt, one)
        assert (job.output, job.finish) == (single.output, single.finish)
