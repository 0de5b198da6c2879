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

LONGEST_SUM, HEAD_SUM, FIRST_LAYERS_SUM = 768, 288, 192
"""Most products that one chain of additions sums: oneDNN adds them one after the other, so a long chain
rounds more than it must, and every piece more is a call more. What the first layers round off grows in all
layers behind them, and the head's error is in the logits as it is: those two are summed in short chains,
which brings every row within 1e-4 of exact arithmetic for a few per cent of the speed; short chains
everywhere cost a fifth to a half and gain nothing more (docs/measurements.md)."""
N_FIRST_LAYERS = 3


class PackedLinear(nn.Module):
    """`x [..., in] -> [..., out]`, with a weight in oneDNN's own layout."""

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, *, longest_sum: int = LONGEST_SUM
    ) -> None:
        """Pack `weight [out, in]`, float32 on the CPU, in pieces of at most `longest_sum` inputs."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        n_pieces = 1 << (-(-self.in_features // longest_sum) - 1).bit_length()  # a power of two
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
    packed = {name: _packed(layer, longest_sum(name)) for name, layer in model.named_modules()}
    found = {name: layer for name, layer in packed.items() if layer is not None}
    for name, layer in found.items():
        model.set_submodule(name, layer)
    return len(found)


def longest_sum(name: str) -> int:
    """How many products the layer called `name` (`model.layers.2.mlp.up_proj`) may sum in one chain."""
    numbers = [int(part) for part in name.split(".") if part.isdecimal()]
    if not numbers:
        return HEAD_SUM  # outside the decoder's layers there is only the head
    return FIRST_LAYERS_SUM if numbers[0] < N_FIRST_LAYERS else LONGEST_SUM


@torch.no_grad()
def _packed(layer: nn.Module, longest: int) -> PackedLinear | None:
    if type(layer) is nn.Linear:
        return PackedLinear(layer.weight, layer.bias, longest_sum=longest)
    if type(layer) is Conv1D:
        return PackedLinear(layer.weight.t(), layer.bias, longest_sum=longest)
    return None
