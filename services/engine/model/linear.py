"""Float32 linear layers whose weight is packed once, so that a row never depends on its company.

`F.linear` packs its weight again for every call and chooses its kernel by the number of rows, so
the same row differs in the last bits between batches. A weight packed once by oneDNN gives the
same bits for any number of rows, and faster. Knows nothing of models beyond their linear layers.
"""

import logging
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

LOG = logging.getLogger(__name__)

LONGEST_SUM = 768
"""Most products that one chain of additions sums: oneDNN adds them one after the other, so a long
chain rounds more than it must. Half as long costs a fifth of the decode speed (docs/measurements.md)."""


class PackedLinear(nn.Module):
    """`x [..., in] -> [..., out]`, with a weight in oneDNN's own layout."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Pack `weight [out, in]`, float32 on the CPU."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        n_pieces = -(-self.in_features // LONGEST_SUM)
        self._widths = [len(part) for part in torch.arange(self.in_features).chunk(n_pieces)]
        self._pieces: list[Any] = [
            torch.ops.mkldnn._reorder_linear_weight(piece.contiguous(), None)  # [out, width]
            for piece in weight.split_with_sizes(self._widths, 1)
        ]
        self._bias = None if bias is None else bias.detach().clone()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        linear = torch.ops.mkldnn._linear_pointwise
        parts = x.split_with_sizes(self._widths, -1)
        y: torch.Tensor = linear(parts[0], self._pieces[0], self._bias, "none", [], "")
        for part, piece in zip(parts[1:], self._pieces[1:], strict=True):
            y = linear.binary(part, y, piece, None, "add")
        return y  # [..., out]


def can_pack() -> bool:
    """Whether this build of torch has oneDNN's packed linear layers."""
    available = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return bool(available) and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def pack_linear_layers(model: nn.Module) -> int:
    """Replace every linear layer of a float32 CPU model; returns how many were replaced.

    GPT-2's `Conv1D` is a linear layer with its weight transposed. A head that shares its weight
    with the embedding gets a packed copy; the embedding keeps the original.
    """
    if not can_pack():
        LOG.warning(
            "this torch has no oneDNN: plain linear layers are used, slower, and the last bits of "
            "a request's logits may then depend on what else runs"
        )
        return 0
    count = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            packed = _packed(child)
            if packed is not None:
                setattr(parent, name, packed)
                count += 1
    return count


@torch.no_grad()
def _packed(layer: nn.Module) -> PackedLinear | None:
    if type(layer) is nn.Linear:
        return PackedLinear(layer.weight, layer.bias)
    if type(layer) is Conv1D:
        return PackedLinear(layer.weight.t(), layer.bias)
    return None
