"""Latent attention: which kernel reads its values, and what that keeps."""

from dataclasses import replace

from helpers.planner.layout.attention import LatentAttention, Wires
from helpers.planner.layout.wire import Wire

import pytest
import torch

from .small import LATENT, layout

TOKENS = 64


class _Silent:
    def tell(self, *_: object) -> None: ...

    arrived = made = kept = tell


def _kept(transformer_engine: bool) -> int:
    """Return how many numbers the attention keeps in memory, each storage once."""
    how = replace(layout(LATENT), engine="megatron", zero="none", transformer_engine=transformer_engine, seq=TOKENS)
    found: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        found[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes() // tensor.element_size()
        held.append(tensor)
        return tensor

    held: list[torch.Tensor] = []
    with torch.device("meta"), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        attention = LatentAttention(how, Wires(*(Wire(name, 1, _Silent()) for name in ("t", "c", "e")))).bfloat16()
        x = torch.empty(1, TOKENS, LATENT.hidden, dtype=torch.bfloat16, requires_grad=True)
        weights = {weight.untyped_storage()._cdata for weight in attention.parameters()}
        attention(x)
    return sum(numbers for storage, numbers in found.items() if storage not in weights)


def test_cudnn_reads_values_that_are_narrower_than_keys():
    wide, narrow = LATENT.head_dim, LATENT.value_dim
    # Values and the result are padded, and the result is once more there without its padding.
    assert _kept(False) - _kept(True) == pytest.approx(TOKENS * LATENT.heads * (2 * (wide - narrow) + narrow), abs=8)
