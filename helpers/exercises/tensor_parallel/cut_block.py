"""One rank's part of a transformer block: its part of each matrix, and what happens where paths split and merge."""

from collections.abc import Callable, Sequence

import torch.distributed as dist
from torch import Tensor, nn

from .block import HEAD, KV_HEADS, Block


def cut_block(
    block: Block, serving: Sequence[int], split: Callable[[Tensor], Tensor], merge: Callable[[Tensor], Tensor]
) -> Block:
    """Keep this rank's part of a block; call `split` before each half and `merge` after it.

    Args:
        block: the full block; it is changed.
        serving: the K/V head of each of this rank's query heads, in order.
        split: gets the input of a half, as each rank has it.
        merge: gets the partial sums of a half's output.
    """
    rank, n = dist.get_rank(), dist.get_world_size()
    held = sorted(set(serving))
    block.serving = [held.index(head) for head in serving]
    q, k, v = block.attention_in.layers
    for layer in (k, v):
        _keep(layer, layer.weight.unflatten(0, (KV_HEADS, HEAD))[held].flatten(0, 1))
    for layer in (q, *block.mlp_in.layers):
        _keep(layer, layer.weight.chunk(n)[rank])
    for layer in (block.attention_out, block.mlp_out):
        _keep(layer, layer.weight.chunk(n, dim=1)[rank])
        layer.register_forward_hook(lambda _, inputs, y: merge(y))
    for layers in (block.attention_in, block.mlp_in):
        layers.register_forward_pre_hook(lambda _, inputs: split(*inputs))
    return block


def _keep(linear: nn.Linear, weight: Tensor) -> None:
    linear.weight = nn.Parameter(weight.detach().clone())
