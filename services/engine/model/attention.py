"""One sequence's attention over its own keys and values.

Knows neither the batch nor the layers: a query, a cache and a length in, an output out. It is
called once per sequence, so no other sequence can change a bit of its result.
"""

import torch
from torch.nn.functional import scaled_dot_product_attention


def attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, scaling: float) -> torch.Tensor:
    """Causal attention of the last L_i of N_i positions.

    Args:
        query: [1, h, L_i, d], the newest L_i positions.
        keys, values: [1, g, N_i, d] with g dividing h; the newest L_i of them belong to `query`.
        scaling: factor of the scores.

    Returns: [1, h, L_i, d].
    """
    n_new, n_all = query.shape[2], keys.shape[2]
    mask = None
    if 1 < n_new < n_all:
        mask = torch.ones(n_new, n_all, dtype=torch.bool, device=query.device).tril(n_all - n_new)
    return scaled_dot_product_attention(
        query,
        keys,
        values,
        attn_mask=mask,
        is_causal=n_new == n_all and n_new > 1,
        scale=scaling,
        enable_gqa=query.shape[1] != keys.shape[1],
    )
