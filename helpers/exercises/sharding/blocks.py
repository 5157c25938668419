"""The model that is sharded: blocks that are all alike, as in a transformer, without its attention."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.device import rank_device


class MLPBlock(nn.Module):
    """x + down(gelu(up(norm(x)))), from and to (rows, width)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Blocks(nn.Module):
    """`count` equal blocks in `blocks`, one after the other; with `ends`, a linear layer before and after them.

    The same on every rank and in every run, because it is drawn from a seed of its own.
    """

    def __init__(self, count: int = 8, width: int = 256, ends: bool = False, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.blocks = nn.ModuleList(MLPBlock(width) for _ in range(count))
        self.enter, self.leave = (nn.Linear(width, width) if ends else nn.Identity() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        return self.leave(x)


def rank_rows(rows: int = 16, width: int = 256, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Return this rank's part of the joint batch, x and y: (rows / N, width). x requires a gradient.

    (So that a hook before the first block's backward pass is called, too.)
    """
    torch.manual_seed(seed)
    both = torch.randn(2, rows, width).to(rank_device())
    x, y = (t.chunk(dist.get_world_size())[dist.get_rank()].clone() for t in both)
    return x.requires_grad_(), y
