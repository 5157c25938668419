"""Tensors that all ranks draw alike, so that each knows what one process would compute."""

import torch
import torch.distributed as dist
from torch import Tensor

from ...core.device import rank_device


def drawn(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Return a random tensor for each rank; all ranks draw the same ones."""
    generator = torch.Generator().manual_seed(seed)
    n = dist.get_world_size()
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(rank_device(), dtype) for _ in range(n)]


def leaf(tensor: Tensor) -> Tensor:
    """Return a copy of `tensor` that collects a gradient."""
    return tensor.detach().clone().requires_grad_()
