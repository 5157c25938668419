"""Causal attention of a rank's queries over a sequence that its group shares, the plain way: everybody gets all keys.

It stands in for ring attention where a training step is checked, so that a mistake in the ring costs nothing there.
"""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor


class _Gather(torch.autograd.Function):
    """Parts (..., t, D) of all ranks, as (ranks, ..., t, D). Backward, each rank gets the sum of what all have."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.stack(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        grad = grads[0].contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad[dist.get_rank(ctx.group)], None


def gathered_attention(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return attention of q (B, H, t, D) over the k and v of all ranks; `positions` (t,) are this rank's."""
    everywhere = [torch.empty_like(positions) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everywhere, positions.contiguous(), group=group)
    keys, values = (torch.cat(_Gather.apply(x.contiguous(), group).unbind(), -2) for x in (k, v))
    return F.scaled_dot_product_attention(q, keys, values, positions[:, None] >= torch.cat(everywhere))
