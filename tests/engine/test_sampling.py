"""Rules of choosing a token."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.engine.sampling import LEAST_LOGPROB, Choice, Row, log_softmax, sample, top_logprobs, uniform
from shared.protocol.request import SamplingParams

ROW: Row = np.array([0.0, 3.0, 1.0, 2.0, -1.0], dtype=np.float32)


def choose(row: Row = ROW, *, index: int = 0, output: tuple[int, ...] = (), **changes: object) -> Choice:
    params = SamplingParams.model_validate({"max_new_tokens": 5, "temperature": 0.0} | changes)
    return sample(row, params, index=index, prompt=(2,), output=output)


def drawn(n: int = 300, row: Row = ROW, **changes: Any) -> set[int]:
    """All tokens that `n` places of the stream draw."""
    return {choose(row, index=i, temperature=1.0, seed=1, **changes).token for i in range(n)}


def test_temperature_zero_takes_the_best_and_the_lowest_id_among_equals() -> None:
    assert choose().token == 1
    assert choose(np.array([1.0, 5.0, 5.0], dtype=np.float32)).token == 1


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-30, 1e-6])
def test_a_tiny_temperature_is_greedy_and_no_overflow(temperature: float) -> None:
    assert {choose(index=i, temperature=temperature).token for i in range(20)} == {1}


def test_the_row_is_not_changed() -> None:
    row = ROW.copy()
    choose(row, temperature=0.7, presence_penalty=1.0, logit_bias={0: 5.0}, output=(1, 1))
    assert np.array_equal(row, ROW)


def test_without_filters_every_token_may_come_about_as_often_as_its_probability_says() -> None:
    n = 4000
    tokens = [choose(index=i, temperature=1.0, seed=9).token for i in range(n)]
    expected = np.exp(log_softmax(ROW))
    for token, probability in enumerate(expected):
        assert abs(tokens.count(token) / n - probability) < 4 * math.sqrt(probability / n)


def test_top_k_leaves_k_tokens() -> None:
    assert drawn(top_k=2) == {1, 3}
    assert drawn(top_k=1) == {1}


def test_top_k_prefers_the_lower_id_among_equals() -> None:
    assert drawn(row=np.zeros(6, dtype=np.float32), top_k=3) == {0, 1, 2}


def test_top_p_leaves_the_fewest_tokens_that_reach_it() -> None:
    probabilities = np.exp(log_softmax(ROW))
    assert drawn(top_p=float(probabilities[1]) - 0.01) == {1}
    assert drawn(top_p=float(probabilities[1]) + 0.01) == {1, 3}


def test_a_tiny_top_p_leaves_the_best() -> None:
    assert drawn(top_p=1e-12) == {1}


def test_top_p_of_a_flat_wide_row_keeps_its_part() -> None:
    row = np.zeros(5000, dtype=np.float32)
    assert max(drawn(row=row, n=2000, top_p=0.5)) < 2500


def test_min_p_leaves_what_is_near_the_best() -> None:
    assert drawn(min_p=math.exp(-1.5)) == {1, 3}
    assert drawn(min_p=1.0) == {1}


def test_presence_and_frequency_penalties_count_output_tokens() -> None:
    assert choose(output=(1,), presence_penalty=1.5).token == 3
    assert choose(output=(1, 1, 1), frequency_penalty=0.5).token == 3
    assert choose(output=(1,), frequency_penalty=0.5).token == 1


def test_repetition_penalty_counts_the_prompt_too_and_pushes_negative_scores_down() -> None:
    assert choose(np.array([0.0, 1.0, 1.5], dtype=np.float32), repetition_penalty=2.0).token == 1
    assert choose(np.array([-1.5, -9.0, -1.0], dtype=np.float32), repetition_penalty=2.0).token == 0


def test_logit_bias_moves_a_token() -> None:
    assert choose(logit_bias={4: 100.0}).token == 4
    assert choose(logit_bias={1: -100.0}).token == 3


def test_a_bias_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="logit_bias names token 99"):
        choose(logit_bias={99: 1.0})


def test_banned_tokens_do_not_come_whatever_their_bias() -> None:
    params = SamplingParams(max_new_tokens=1, temperature=0.0, logit_bias={1: 100.0})
    assert sample(ROW, params, index=0, prompt=(), output=(), banned={1, 10_000}).token == 3


def test_logprobs_are_of_the_raw_row_best_first() -> None:
    choice = choose(logprobs=2, logit_bias={4: 100.0})
    raw = log_softmax(ROW)
    assert choice.logprob == pytest.approx(raw[4])
    assert [token for token, _ in choice.top] == [1, 3]
    assert choice.top[0][1] == pytest.approx(raw[1])


def test_logprobs_zero_gives_the_token_alone_and_none_gives_nothing() -> None:
    assert choose(logprobs=0).top == ()
    assert choose(logprobs=0).logprob is not None
    assert choose().logprob is None


def test_logprobs_are_finite_for_impossible_tokens() -> None:
    row = np.array([0.0, -1e30], dtype=np.float32)
    assert log_softmax(row)[1] == LEAST_LOGPROB
    assert top_logprobs(log_softmax(row), 20) == ((0, 0.0), (1, LEAST_LOGPROB))


def test_the_stream_depends_on_seed_sample_and_index_alone() -> None:
    assert uniform(1, 2, 3) == uniform(1, 2, 3)
    assert len({uniform(1, 2, 3), uniform(0, 2, 3), uniform(1, 0, 3), uniform(1, 2, 0)}) == 4
    assert uniform(-(2**63), 0, 0) != uniform(2**63 - 1, 0, 0)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 127), st.integers(0, 10**6))
def test_the_stream_lies_in_the_half_open_unit_interval(seed: int, number: int, index: int) -> None:
    assert 0.0 <= uniform(seed, number, index) < 1.0


@given(
    st.lists(st.floats(-50, 50, width=32), min_size=2, max_size=40),
    st.floats(0, 2),
    st.floats(0.01, 1.0),
    st.integers(0, 10),
    st.floats(0, 1),
    st.integers(0, 50),
)
def test_any_parameters_give_a_token_of_the_vocabulary(
    row: list[float], temperature: float, top_p: float, top_k: int, min_p: float, index: int
) -> None:
    values = np.array(row, dtype=np.float32)
    choice = choose(values, index=index, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)
    assert 0 <= choice.token < len(row)
