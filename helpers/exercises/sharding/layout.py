"""Parameters in one flat vector, as the probes need them: what `partition` is asked to do, done by the course."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

SHAPES = {"21 numbers": ((3, 4), (4,), (5,)), "24 numbers": ((4, 3), (), (11,)), "2 numbers": ((2,),)}
WORLDS = (2, 3, 4)


def shard_size(numbers: int, world_size: int) -> int:
    """Return how many numbers a shard has: all of them, shared out evenly and rounded up."""
    return -(-numbers // world_size)


def make_parameters(shapes: Sequence[tuple[int, ...]], seed: int, dtype: torch.dtype = torch.float64) -> list[Any]:
    """Return parameters drawn from `seed`, each in memory of its own."""
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)) for shape in shapes]


def end_to_end(tensors: Sequence[Tensor], world_size: int) -> Tensor:
    """Return the numbers of `tensors` in one vector, padded with zeros to a multiple of `world_size`: (N x shard,)."""
    numbers = torch.cat([t.detach().flatten() for t in tensors])
    flat = numbers.new_zeros(world_size * shard_size(len(numbers), world_size))
    flat[: len(numbers)] = numbers
    return flat


def lay_out(parameters: Sequence[nn.Parameter], rank: int, world_size: int) -> tuple[Tensor, Tensor]:
    """Make `parameters` views of one flat vector; return it, and the view that is this rank's shard."""
    flat = end_to_end(parameters, world_size)
    start = 0
    for p in parameters:
        p.data = flat[start : start + p.numel()].view_as(p)
        start += p.numel()
    return flat, flat.chunk(world_size)[rank]
