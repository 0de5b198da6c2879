"""Selective batching: everything runs on the flat batch, attention runs per sequence.

The one place in the model that knows requests. `transformers` calls `selective_attention` in
every layer instead of its own attention; the model's code is unchanged.
"""

from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface

from services.engine.inputs import FlatBatch
from services.engine.model.attention import attend

NAME = "orca_selective"
BATCH_ARGUMENT = "orca_batch"
"""The keyword under which the model hands the batch through to its attention."""


class Progress:
    """Counts layers computed, for ever: read by the heartbeat while a forward pass runs."""

    def __init__(self) -> None:
        self.layers = 0


PROGRESS = Progress()


def selective_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Split the flat rows by member, append to each member's K/V, attend, merge.

    Args:
        query: [1, h, T, d].
        key, value: [1, g, T, d].
        attention_mask: always None; each member's mask follows from its lengths.

    Returns: [1, T, h, d], the members in their order.

    Raises:
        ValueError: the model asks for something that this attention does not compute.
    """
    _refuse_extras(attention_mask, kwargs)
    batch: FlatBatch = kwargs[BATCH_ARGUMENT]
    layer: int = module.layer_idx  # type: ignore[assignment]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    lengths = list(batch.lengths)
    splits = zip(
        batch.caches,
        query.split_with_sizes(lengths, 2),
        key.split_with_sizes(lengths, 2),
        value.split_with_sizes(lengths, 2),
        strict=True,
    )
    merged = [_member(layer, cache, q, k, v, scale) for cache, q, k, v in splits]
    PROGRESS.layers += 1
    return torch.cat(merged, 1) if len(merged) > 1 else merged[0], None  # [1, T, h, d]


def _member(
    layer: int, cache: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
) -> torch.Tensor:
    keys, values = cache.write(layer, key, value)  # [1, g, N_i, d]
    return attend(query, keys, values, scaling=scale).transpose(1, 2)  # [1, L_i, h, d]


def _refuse_extras(attention_mask: torch.Tensor | None, kwargs: dict[str, Any]) -> None:
    if attention_mask is not None:
        raise ValueError("the model brings an attention mask of its own")
    for name in ("softcap", "s_aux", "position_bias"):
        if kwargs.get(name) is not None:
            raise ValueError(f"the model's attention needs {name!r}, which is not supported")


AttentionInterface.register(NAME, selective_attention)
