"""Choosing a token: a pure function of one logits row, the parameters and the place in the stream.

Knows neither batch nor model. One uniform number per token comes from hashing (seed, sample,
index), so a request draws the same tokens alone, in any batch, after a restart and on any engine.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.protocol.request import SamplingParams

Row = npt.NDArray[Any]
"""[V]: one number per token id."""

LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen token and, where asked for, the model's own log probabilities."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


def sample(
    logits: Row,
    params: SamplingParams,
    *,
    index: int,
    prompt: Sequence[int],
    output: Sequence[int],
    banned: Iterable[int] = (),
) -> Choice:
    """Choose the next token.

    Args:
        logits: [V] float32, finite; not changed.
        index: how many tokens were generated before this one.
        prompt, output: the tokens so far, for the penalties.
        banned: ids that may not come now (end-of-sequence before `min_tokens`).

    Raises:
        ValueError: a `logit_bias` names an id outside the vocabulary, or every token is banned.
    """
    scores = adjust(logits, params, prompt, output, banned)
    if params.temperature == 0.0:
        token = int(np.argmax(scores))  # the lowest id among equals
    else:
        token = _draw(scores, params, uniform(params.seed, params.sample, index))
    if params.logprobs is None:
        return Choice(token)
    logprobs = log_softmax(logits)
    return Choice(token, float(logprobs[token]), top_logprobs(logprobs, params.logprobs))


def uniform(seed: int, sample_number: int, index: int) -> float:
    """The number in [0, 1) that decides one token, from a hash of what identifies it."""
    name = f"{seed}:{sample_number}:{index}".encode()
    bits = int.from_bytes(blake2b(name, digest_size=8).digest(), "big")
    return (bits >> 11) * 2.0**-53


def log_softmax(logits: Row) -> Row:
    """[V] log probabilities in float64, never below `LEAST_LOGPROB`."""
    wide = logits.astype(np.float64)
    wide -= wide.max()
    wide -= np.log(np.exp(wide).sum())
    return np.maximum(wide, LEAST_LOGPROB)


def top_logprobs(logprobs: Row, n: int) -> tuple[tuple[int, float], ...]:
    """The n most probable tokens, best first; the lower id first among equals."""
    if n <= 0:
        return ()
    ids = _largest(logprobs, n)
    return tuple((int(i), float(logprobs[i])) for i in ids)


def adjust(
    logits: Row,
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    banned: Iterable[int] = (),
) -> Row:
    """[V] scores: penalties, then bias, then bans; the row itself where nothing applies.

    The repetition penalty is that of `transformers`: every token of prompt and output, once, a
    positive score divided and a negative one multiplied. Presence and frequency penalties are
    OpenAI's: tokens of the output alone, `score -= presence + frequency * count`.

    Raises:
        ValueError: as `sample` does.
    """
    scores = logits
    if params.repetition_penalty != 1.0:
        scores = logits.astype(np.float64)
        seen = np.unique(np.fromiter((*prompt, *output), dtype=np.int64))
        values = scores[seen]
        factor = params.repetition_penalty
        scores[seen] = np.where(values > 0, values / factor, values * factor)
    if (params.presence_penalty or params.frequency_penalty) and output:
        scores = _own(scores, logits)
        ids, counts = np.unique(np.asarray(output, dtype=np.int64), return_counts=True)
        scores[ids] -= params.presence_penalty + params.frequency_penalty * counts
    if params.logit_bias:
        scores = _own(scores, logits)
        for token, bias in params.logit_bias.items():
            if not 0 <= token < len(scores):
                raise ValueError(f"logit_bias names token {token}; the vocabulary has {len(scores)}")
            scores[token] += bias
    # An id outside the vocabulary cannot come anyway.
    outlaws = [token for token in banned if 0 <= token < len(scores)]
    if outlaws:
        scores = _own(scores, logits)
        scores[outlaws] = -np.inf
        if scores.max() == -np.inf:
            raise ValueError("every token of the vocabulary is banned at this place")
    return scores


def _own(scores: Row, logits: Row) -> Row:
    return logits.astype(np.float64) if scores is logits else scores


def probabilities(scores: Row, params: SamplingParams) -> Row:
    """[V] float64, sums to one: what each token is drawn with after temperature, top_k, top_p and min_p.

    Only for a temperature over zero. `scores` are those of `adjust`.
    """
    weights, candidates = _weigh(scores, params)
    if candidates is not None:
        dense = np.zeros(len(scores))
        dense[candidates] = weights
        weights = dense
    weights /= weights.sum()
    return weights


def _draw(scores: Row, params: SamplingParams, number: float) -> int:
    """Inverse of the distribution function, in token-id order, in float64."""
    weights, candidates = _weigh(scores, params)
    sums = np.cumsum(weights)
    place = int(np.searchsorted(sums, number * sums[-1], side="right"))
    place = min(place, int(np.searchsorted(sums, sums[-1], side="left")))  # rounding must not leave the row
    return place if candidates is None else int(candidates[place])


def _weigh(scores: Row, params: SamplingParams) -> tuple[Row, npt.NDArray[np.int64] | None]:
    """Weights relative to the best token's 1, and the ids they belong to; None for all."""
    weights = scores.astype(np.float64)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        weights -= weights.max()
        # A tiny temperature sends the rest to minus infinity; the best stays at 0.
        weights /= params.temperature
        np.exp(weights, out=weights)
    candidates = _candidates(weights, params)
    return weights if candidates is None else weights[candidates], candidates


def _candidates(weights: Row, params: SamplingParams) -> npt.NDArray[np.int64] | None:
    """The ids that top_k, top_p and min_p leave, ascending; None for all.

    Each filter works on what the one before it left. The best token always stays.
    """
    ids: npt.NDArray[np.int64] | None = None
    if 0 < params.top_k < len(weights):
        ids = _largest(weights, params.top_k)
    if params.top_p < 1.0:
        ids = _nucleus(weights, ids, params.top_p)
    if params.min_p > 0.0:
        if ids is None:
            ids = np.arange(len(weights))
        ids = ids[weights[ids] >= params.min_p * weights.max()]
    return None if ids is None else np.sort(ids)


def _nucleus(weights: Row, ids: npt.NDArray[np.int64] | None, top_p: float) -> npt.NDArray[np.int64]:
    """The fewest best tokens whose weights sum to at least top_p of all, best first."""
    if ids is not None:
        best, total = ids, weights[ids].sum()
    else:
        total = weights.sum()
        # Sorting a few hundred instead of the vocabulary is enough unless the row is flat.
        best = _largest(weights, min(512, len(weights)))
        if weights[best].sum() < top_p * total:
            best = _largest(weights, len(weights))
    keep = int(np.searchsorted(np.cumsum(weights[best]), top_p * total, side="left")) + 1
    return best[:keep]


def _largest(values: Row, n: int) -> npt.NDArray[np.int64]:
    """Ids of the n largest values, best first; the lower id first among equals."""
    if n < len(values):
        least = np.partition(values, len(values) - n)[len(values) - n]
        above = np.flatnonzero(values > least)
        equal = np.flatnonzero(values == least)[: n - len(above)]
        ids = np.concatenate((above, equal))
    else:
        ids = np.arange(len(values))
    return ids[np.lexsort((ids, -values[ids]))]
