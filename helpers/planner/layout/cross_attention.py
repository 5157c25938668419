"""Attention of a decoder's tokens on those of an encoder."""

from torch import Tensor, nn

from .adapters import linear
from .attention import BOTH_WAYS, Wires, attend, column, columns_of, parts, scored
from .layout import Layout
from .wire import leave


class CrossAttention(nn.Module):
    """Queries of one stream, keys and values of another: this tensor rank's heads.

    Keys and values come from one layer, as in Megatron (`CrossAttention` in its attention.py).
    """

    def __init__(self, layout: Layout, wires: Wires) -> None:
        super().__init__()
        arch = layout.arch
        self.wires, self.layout, self.head = wires, layout, arch.head_dim
        self.width = arch.heads // layout.tensor * arch.head_dim
        self.q = columns_of(layout, [self.width], arch.bias)
        self.kv = columns_of(layout, [self.width, self.width], arch.bias)
        self.out = linear(layout, self.width, arch.hidden, arch.bias)

    def forward(self, x: Tensor, read: Tensor) -> Tensor:
        """x, read: (B, S, D) with an S of their own, or its part of a tensor rank; the result is like x."""
        layout, wire = self.layout, self.wires.tensor
        outs = column(x, list(self.q), wire, layout)
        outs += parts(column(read, list(self.kv), wire, layout), [self.width, self.width])
        q, k, v = (out.unflatten(-1, (-1, self.head)).transpose(1, 2) for out in outs)  # (B, heads, S, head)
        if layout.attention == "eager":
            out = scored(layout, q, k, v, True)
        else:
            out = attend(q, k, v, self.wires.context, BOTH_WAYS)
        return leave(self.out(out.transpose(1, 2).flatten(2)), wire, layout.splits_tokens)
