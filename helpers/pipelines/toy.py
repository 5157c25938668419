"""A small model to cut into stages: blocks that are all alike, and a batch for them."""

import itertools

import torch
from torch import Tensor, nn

from .two_parts import LinearInTwoParts

WIDTH = 64
BLOCKS = 8


class Block(nn.Module):
    """x + MLP(x)."""

    def __init__(self, linear: type[nn.Linear] = LinearInTwoParts) -> None:
        super().__init__()
        up, down = linear(WIDTH, 4 * WIDTH), linear(4 * WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), up, nn.GELU(), down)

    def forward(self, x: Tensor) -> Tensor:
        """Map (rows, WIDTH) to (rows, WIDTH)."""
        return x + self.mlp(x)


def toy_stages(stages: int, linear: type[nn.Linear] = LinearInTwoParts) -> list[nn.Sequential]:
    """Return the model of eight blocks, cut into stages as evenly as it goes; each stage has a block at least."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = [Block(linear) for _ in range(max(BLOCKS, stages))]
    ends = [-(-len(model) * stage // stages) for stage in range(stages + 1)]
    return [nn.Sequential(*model[a:b]) for a, b in itertools.pairwise(ends)]


def toy_batch(rows: int, micro_batches: int) -> tuple[list[Tensor], list[Tensor]]:
    """Return inputs and targets, each a list of `micro_batches` tensors (rows / micro_batches, WIDTH)."""
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(2, rows, WIDTH, generator=generator)
    return list(x.chunk(micro_batches)), list(y.chunk(micro_batches))
