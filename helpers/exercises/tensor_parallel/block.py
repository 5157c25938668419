"""A transformer block with grouped query heads, small enough for several ranks on a CPU, and its input."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.device import rank_device

T, C = 32, 64  # tokens, channels (width)
HEADS, KV_HEADS = 8, 2
HEAD = C // HEADS  # channels of a head


class Into(nn.Module):
    """Linear layers that share their input."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(C, width, bias=False) for width in widths)

    def forward(self, x: Tensor) -> list[Tensor]:
        return [layer(x) for layer in self.layers]


class Block(nn.Module):
    """Attention and an MLP, each behind a norm and beside a residual path: x (B, T, C) in and out."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.attention_in = Into(C, KV_HEADS * HEAD, KV_HEADS * HEAD)
        self.attention_out = nn.Linear(C, C, bias=False)
        self.mlp_in, self.mlp_out = Into(4 * C), nn.Linear(4 * C, C, bias=False)
        self.serving = [head * KV_HEADS // HEADS for head in range(HEADS)]  # the K/V head of each query head

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (-1, HEAD)).transpose(1, 2) for y in self.attention_in(self.norm_1(x)))
        y = F.scaled_dot_product_attention(q, k[:, self.serving], v[:, self.serving], is_causal=True)
        x = x + self.attention_out(y.transpose(1, 2).flatten(2))
        (h,) = self.mlp_in(self.norm_2(x))
        return x + self.mlp_out(F.gelu(h))


def make_block() -> Block:
    """Return the block, with the same weights on every rank."""
    torch.manual_seed(0)
    return Block().to(rank_device())


def block_input() -> Tensor:
    """Return two sequences (2, T, C), the same on every rank."""
    torch.manual_seed(1)
    return torch.randn(2, T, C, device=rank_device())
