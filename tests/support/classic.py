"""A classical batcher, the baseline that selective batching replaces.

It runs only what has one common shape [B, L, H]: the same phase, and in the prefill the same
number of input tokens, in the decode the same position.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


class ShapesDiffer(ValueError):
    """These requests have no common [B, L, H]."""


@dataclass(frozen=True, slots=True)
class ClassicInput:
    """One request: its new tokens and how many tokens of it have K/V already."""

    tokens: tuple[int, ...]
    n_kv: int


class ClassicBatcher:
    """Runs batches of one shape through a model with the library's own attention and cache."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self._cache: Any = None

    @staticmethod
    def check(batch: Sequence[ClassicInput]) -> tuple[int, int]:
        """The common [B, L] of a batch.

        Raises:
            ShapesDiffer: there is none.
        """
        if len({one.n_kv == 0 for one in batch}) > 1:
            raise ShapesDiffer("different phases")
        if len({one.n_kv for one in batch}) > 1:
            raise ShapesDiffer("different token index in the decode")
        if len({len(one.tokens) for one in batch}) > 1:
            raise ShapesDiffer("different number of input tokens in the prefill")
        return len(batch), len(batch[0].tokens)

    @torch.no_grad()
    def run(self, batch: Sequence[ClassicInput]) -> torch.Tensor:
        """One iteration; returns the last rows' logits [B, V]."""
        self.check(batch)
        ids = torch.tensor([one.tokens for one in batch])  # [B, L]
        cache = self._cache if batch[0].n_kv else None
        output = self._network(input_ids=ids, cache=cache, use_cache=True)
        self._cache = output.cache
        logits: torch.Tensor = output.logits[:, -1]  # [B, V]
        return logits
