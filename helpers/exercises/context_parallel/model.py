"""A small language model. Attention and positions are given from outside: they alone know of other tokens."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """Return x (B, H, T, d) turned by its positions (T,), as Su et al. 2021 do: scores depend on distances only."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * 100.0 ** -torch.linspace(0, 1, half, device=x.device, dtype=x.dtype)  # (T, d/2)
    (a, b), cos, sin = x.chunk(2, dim=-1), angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class Block(nn.Module):
    """A transformer block with grouped queries."""

    def __init__(self, attention: Attention, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.attention, self.head = attention, width // heads
        self.norm_1, self.norm_2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.out = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(width, kv_heads * self.head, bias=False) for _ in range(2))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return the block's result for x (B, T, width)."""
        h = self.norm_1(x)
        q, k, v = (layer(h).unflatten(-1, (-1, self.head)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        y = self.attention(rotated(q, positions), rotated(k, positions), v)  # (B, H, T, d)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class LongModel(nn.Module):
    """A decoder of a few blocks.

    Args:
        attention: called with q (B, H, T, d), k and v (B, K, T, d); returns (B, H, T, d).
        width, heads, kv_heads: of each block.
    """

    def __init__(self, attention: Attention, width: int = 64, heads: int = 8, kv_heads: int = 4) -> None:
        super().__init__()
        self.table = nn.Embedding(128, width)
        self.blocks = nn.ModuleList(Block(attention, width, heads, kv_heads) for _ in range(2))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, 128, bias=False)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Return logits (B, T, 128) for ids (B, T) that stand at `positions` (T,) of their sequences."""
        x = self.table(ids)
        for block in self.blocks:
            x = block(x, positions)
        return self.head(self.norm(x))
