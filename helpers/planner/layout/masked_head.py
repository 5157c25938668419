"""What BERT has between its last norm and the logits, and beside them; every tensor rank has it whole."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .kernels import Norm
from .layout import Layout
from .wire import Wire, enter


class MaskedHead(nn.Module):
    """A dense layer, GELU and a norm before the logits; for pairs of sentences, two logits of the first token.

    So in Megatron's models/bert (`BertLMHead`, `Pooler`).
    """

    def __init__(self, layout: Layout, wire: Wire) -> None:
        super().__init__()
        width = layout.arch.hidden
        self.wire, self.by_tokens = wire, layout.splits_tokens
        self.dense, self.norm = nn.Linear(width, width), Norm(width, True)
        self.pairs = (
            nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2)) if layout.arch.pairs else None
        )

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, S, D), or (B, S / tensor, D) where tokens are split; likewise the result."""
        return self.norm(F.gelu(self.dense(x)))

    def pair_loss(self, x: Tensor) -> Tensor | float:
        """Return the loss of the pairs; 0 where none are classified. x: as in `forward`."""
        if self.pairs is None:
            return 0.0
        first = (enter(x, self.wire, True) if self.by_tokens else x)[:, 0]  # (B, D)
        return F.cross_entropy(self.pairs(first).float(), torch.zeros(len(first), dtype=torch.long))
