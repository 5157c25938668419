"""Multi-token prediction: a block that predicts one token further than the stream that it reads."""

import torch
from torch import Tensor, nn

from .attention import Wires, column
from .kernels import Norm
from .layout import Layout
from .wire import join


class NextTokens(nn.Module):
    """Joins the stream with the embedding of the next token, and runs a block on that (arXiv 2412.19437).

    As in Megatron's multi_token_prediction.py: both are normed, the layer that joins them is split by columns, and its
    result is gathered whole on each tensor rank, which then takes its own tokens of it.
    """

    def __init__(self, layout: Layout, wires: Wires, block: nn.Module) -> None:
        super().__init__()
        arch = layout.arch
        self.wire, self.layout = wires.tensor, layout
        norms = (Norm(arch.hidden, arch.layer_norm) for _ in range(3))
        self.stream_norm, self.embedding_norm, self.norm = norms
        self.both = nn.Linear(2 * arch.hidden, arch.hidden // self.wire.size, bias=False)
        self.block = block

    def forward(self, x: Tensor, embedded: Tensor) -> Tensor:
        """x, embedded: (B, S, D), or (B, S / tensor, D) where tokens are split; likewise the result, normed."""
        both = torch.cat((self.embedding_norm(embedded), self.stream_norm(x)), -1)
        (own,) = column(both, [self.both], self.wire, self.layout)
        return self.norm(self.block(join(own, self.wire)[:, : x.shape[1]]))
