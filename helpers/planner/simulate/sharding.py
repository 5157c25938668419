"""What the ranks of a data-parallel run share out, seen from the rank that holds most.

DDP keeps a second copy of the gradients in its communication buckets. ZeRO-1 gives each rank the optimizer state of a
part of the parameters, ZeRO-2 also the gradients of that part. ZeRO-3 is PyTorch's own `fully_shard`, run on a process
group that only pretends.
"""

import heapq
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...core.units import MiB
from ..recipe import Recipe, RecipeError
from .blocks import find_blocks

FIRST_BUCKET, BUCKET = MiB, 25 * MiB  # DistributedDataParallel's defaults


def zero_partition(parameters: Sequence[Tensor], ranks: int) -> list[Tensor]:
    """Return the parameters whose state the fullest rank keeps, dealt as `ZeroRedundancyOptimizer` deals them.

    The largest parameter goes first, each to the rank that has least.
    """
    hands: list[tuple[int, int, list[Tensor]]] = [(0, rank, []) for rank in range(ranks)]
    for parameter in sorted(parameters, key=lambda p: -p.numel()):
        held, rank, hand = heapq.heappop(hands)
        heapq.heappush(hands, (held + parameter.numel(), rank, [*hand, parameter]))
    mine = {id(parameter) for parameter in max(hands)[2]}
    return [parameter for parameter in parameters if id(parameter) in mine]


def ddp_buckets(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Allocate DDP's buckets: flat buffers into which gradients are copied to be all-reduced."""
    buckets, sizes, limit = [], 0, FIRST_BUCKET
    dtype = parameters[0].dtype
    for parameter in reversed(parameters):
        sizes += parameter.numel()
        if sizes * dtype.itemsize >= limit:
            buckets.append(torch.empty(sizes, dtype=dtype))
            sizes, limit = 0, BUCKET
    return [*buckets, torch.empty(sizes, dtype=dtype)] if sizes else buckets


@contextmanager
def fake_process_group(recipe: Recipe) -> Iterator[None]:
    """Open a process group of `recipe.ranks` ranks in which nobody answers and nobody needs to."""
    if not fully_sharded(recipe):
        yield
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise RecipeError("A process group is open in this process: plan zero3 in another one.")
    hook = sys.excepthook  # which a process group replaces, to put its rank before tracebacks
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=recipe.ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook


def fully_sharded(recipe: Recipe) -> bool:
    """Say whether parameters are gathered layer by layer."""
    return recipe.shard == "zero3" or recipe.offload == "all"


def shard_fully(model: nn.Module, recipe: Recipe, mesh: dist.DeviceMesh) -> None:
    """Apply `fully_shard` to each block and to the whole, in place."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    low = recipe.amp_dtype
    policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32) if low else MixedPrecisionPolicy()
    for block in find_blocks(model):
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def bytes_sent(recipe: Recipe, parameter_bytes: int, trained_bytes: int) -> int:
    """Return the bytes a rank sends in one optimizer step when the collectives run as rings.

    An all-reduce costs 2 (N - 1) / N of its buffer, a reduce-scatter or an all-gather half of that. DDP and ZeRO-1
    reduce the gradients once a step, ZeRO-2 after each micro-batch; the updated parameters move once. ZeRO-3 gathers
    the parameters before each forward and each backward pass, in the dtype it computes in, and reduces the gradients
    after it (Rajbhandari et al. 2020, section 7).
    """
    if recipe.ranks == 1:
        return 0
    share = (recipe.ranks - 1) / recipe.ranks
    if recipe.shard == "zero3":
        gathered = parameter_bytes * (recipe.amp_dtype or recipe.weight_dtype).itemsize // recipe.weight_dtype.itemsize
        return int(share * recipe.accumulate * (2 * gathered + trained_bytes))
    reductions = recipe.accumulate if recipe.shard == "zero2" else 1
    return int(share * (reductions + 1) * trained_bytes)
