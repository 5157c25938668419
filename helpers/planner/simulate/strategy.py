"""Data-parallel strategies, as the rank sees them that holds most.

DDP keeps a second copy of the gradients in its communication buckets. ZeRO-1 gives each rank the optimizer state of a
part of the parameters, ZeRO-2 also the gradients of that part. ZeRO-3 is PyTorch's own `fully_shard`, run on a fake
process group.
"""

import heapq
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from importlib.util import find_spec

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...core.units import MiB
from ..config import REDUCE_BUCKET, RecipeError, TrainingConfig
from .blocks import find_blocks
from .contexts import shapes_uncounted
from .model import materialize

FIRST_BUCKET, BUCKET = MiB, 25 * MiB  # DistributedDataParallel's defaults


class Strategy:
    """The whole model on each rank: one GPU alone, or DDP.

    Subclasses change what a rank holds, updates and sends. "Trained" are the parameters with a gradient, "own" those of
    them that this rank's optimizer updates.

    Attributes:
        shards_parameters, shards_gradients, shards_state: what is split over the ranks.
        repeats: whether the second step allocates and frees exactly what the first did, but for the optimizer's state.
    """

    shards_parameters = shards_gradients = shards_state = False
    repeats = True

    def __init__(self, recipe: TrainingConfig) -> None:
        self.recipe = recipe

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        """The dtype of autocast; None switches it off."""
        return self.recipe.amp_dtype

    def process_group(self) -> AbstractContextManager[None]:
        """Return the context of the process group in which the steps run."""
        return nullcontext()

    def place(self, model: nn.Module) -> None:
        """Give `model`, which is on the meta device, the memory that it takes on this rank."""
        materialize(model)

    def buckets(self, trained: Sequence[Tensor]) -> list[Tensor]:
        """Allocate the flat buffers through which gradients are reduced, as far as they outlive the backward pass."""
        return ddp_buckets(trained) if self.recipe.ranks > 1 else []

    def own(self, trained: list[Tensor]) -> list[Tensor]:
        """Return the parameters that this rank's optimizer updates."""
        return trained

    def hook_gradients(self, trained: list[Tensor], own: list[Tensor]) -> None:
        """Register what happens to a gradient as soon as it is complete."""

    def backward_pass(self) -> AbstractContextManager[None]:
        """Return the context of a backward pass."""
        return nullcontext()

    def before_optimizer_step(self, trained: list[Tensor], own: list[Tensor]) -> None:
        """Give the parameters to update their gradients."""

    def after_optimizer_step(self, own: list[Tensor]) -> None:
        """Free what `before_optimizer_step` has made."""

    def static_bytes(self, parameter_bytes: int, trained_bytes: int) -> int:
        """Return the bytes of parameters and gradients that a rank holds through a whole step, at least."""
        gradients = 0 if self.recipe.step_in_backward or self.shards_gradients else trained_bytes
        return parameter_bytes + gradients

    def bytes_sent(self, parameter_bytes: int, trained_bytes: int) -> int:
        """Return the bytes that a rank sends in one optimizer step when the collectives run as rings.

        An all-reduce costs 2 (N - 1) / N of its buffer, a reduce-scatter or an all-gather half of that. DDP and ZeRO-1
        reduce the gradients once a step; the updated parameters move once (Rajbhandari et al. 2020, section 7).
        """
        return self._ring(2, trained_bytes)

    def _ring(self, times: int, nbytes: int) -> int:
        """Return the bytes that a rank passes on when a buffer of `nbytes` goes round a ring so many `times`."""
        return int((self.recipe.ranks - 1) / self.recipe.ranks * times * nbytes)


class Zero1(Strategy):
    """ZeRO-1: each rank keeps the optimizer state of a part of the parameters, and updates that part.

    With FP32 masters beside 16-bit weights it is DeepSpeed's, which reduces gradients in a buffer of its own.
    """

    shards_state = True

    def own(self, trained: list[Tensor]) -> list[Tensor]:
        """Return the part of the fullest rank."""
        return fullest_partition(trained, self.recipe.ranks)

    @contextmanager
    def backward_pass(self) -> Iterator[None]:
        """Hold DeepSpeed's buffer, whose size does not depend on the model's."""
        buffer = torch.empty(REDUCE_BUCKET, dtype=self.recipe.weight_dtype) if self.recipe.master_weights else None
        yield
        del buffer


class Zero2(Zero1):
    """ZeRO-2: a rank also keeps only the gradients that it updates with."""

    shards_gradients = True

    def buckets(self, trained: Sequence[Tensor]) -> list[Tensor]:
        """Return none: gradients are reduced as they come."""
        return []

    def hook_gradients(self, trained: list[Tensor], own: list[Tensor]) -> None:
        """Free each gradient of another rank's part as soon as it would have been reduced."""
        own_ids = {id(p) for p in own}

        def drop(parameter: Tensor) -> None:
            parameter.grad = None

        for parameter in trained:
            if id(parameter) not in own_ids:
                parameter.register_post_accumulate_grad_hook(drop)

    def bytes_sent(self, parameter_bytes: int, trained_bytes: int) -> int:
        """Return the bytes sent: gradients are reduced after each micro-batch, parameters move once."""
        return self._ring(self.recipe.gradient_accumulation_steps + 1, trained_bytes)


class FullyShard(Strategy):
    """ZeRO-3 by PyTorch's `fully_shard`, which gathers parameters block by block; also from the host's memory."""

    shards_parameters = shards_gradients = shards_state = True
    repeats = False

    @property
    def autocast_dtype(self) -> None:
        """None: `fully_shard` casts by itself."""
        return None

    @contextmanager
    def process_group(self) -> Iterator[None]:
        """Open a fake process group, whose collectives return at once."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.testing._internal.distributed.fake_pg import FakeStore

        if dist.is_initialized():
            raise RecipeError("A process group is open in this process: plan zero3 in another one.")
        if find_spec("torch.distributed._meta_registrations") is None:  # PyTorch 2.9 has the shapes of collectives here
            import_module("torch.distributed._tools.fake_collectives")
        hook = sys.excepthook  # which a process group replaces, to put its rank before tracebacks
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=self.recipe.ranks)
        try:
            self._mesh = init_device_mesh("cpu", (self.recipe.ranks,))
            with shapes_uncounted():
                yield
        finally:
            dist.destroy_process_group()
            sys.excepthook = hook

    def place(self, model: nn.Module) -> None:
        """Shard each block and the rest of the model, and give the shards memory."""
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        low = self.recipe.amp_dtype
        policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32) if low else MixedPrecisionPolicy()
        for block in find_blocks(model):
            fully_shard(block, mesh=self._mesh, mp_policy=policy)
        fully_shard(model, mesh=self._mesh, mp_policy=policy)
        model.to_empty(device="cpu")

    def buckets(self, trained: Sequence[Tensor]) -> list[Tensor]:
        """Return none: `fully_shard` makes its own, for a moment."""
        return []

    def own(self, trained: list[Tensor]) -> list[Tensor]:
        """Return this rank's shards as plain tensors.

        A DTensor works out its shapes on tensors of full size, which the count would take for memory.
        """
        return [p._local_tensor.detach().requires_grad_() for p in trained]

    def before_optimizer_step(self, trained: list[Tensor], own: list[Tensor]) -> None:
        """Give each shard its gradient."""
        for shard, parameter in zip(own, trained, strict=True):
            shard.grad = parameter.grad._local_tensor

    def after_optimizer_step(self, own: list[Tensor]) -> None:
        """Release the gradients of the shards."""
        for shard in own:
            shard.grad = None

    def static_bytes(self, parameter_bytes: int, trained_bytes: int) -> int:
        """Return the bytes of this rank's shard of the parameters; none if it lives on the host."""
        return 0 if self.recipe.offload == "all" else parameter_bytes // self.recipe.ranks

    def bytes_sent(self, parameter_bytes: int, trained_bytes: int) -> int:
        """Return the bytes sent: in each micro-batch parameters are gathered twice and gradients reduced once.

        Parameters are gathered before each forward and each backward pass, in the dtype of the computation.
        """
        recipe = self.recipe
        gathered = parameter_bytes * (recipe.amp_dtype or recipe.weight_dtype).itemsize // recipe.weight_dtype.itemsize
        return self._ring(recipe.gradient_accumulation_steps, 2 * gathered + trained_bytes)


def strategy_of(recipe: TrainingConfig) -> Strategy:
    """Return the strategy of `recipe`. To offload everything takes `fully_shard`, even on one rank."""
    if recipe.offload == "all":
        return FullyShard(recipe)
    return {"none": Strategy, "zero1": Zero1, "zero2": Zero2, "zero3": FullyShard}[recipe.shard](recipe)


def fullest_partition(parameters: Sequence[Tensor], ranks: int) -> list[Tensor]:
    """Return the parameters whose state the fullest rank keeps, dealt as `ZeroRedundancyOptimizer` deals them.

    The largest parameter goes first, each to the rank that has least.
    """
    hands: list[tuple[int, int, list[Tensor]]] = [(0, rank, []) for rank in range(ranks)]
    for parameter in sorted(parameters, key=lambda p: -p.numel()):
        elements, rank, hand = heapq.heappop(hands)
        heapq.heappush(hands, (elements + parameter.numel(), rank, [*hand, parameter]))
    fullest = {id(parameter) for parameter in max(hands)[2]}
    return [parameter for parameter in parameters if id(parameter) in fullest]


def ddp_buckets(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Allocate DDP's buckets: flat buffers into which gradients are copied to be all-reduced."""
    buckets, elements, limit = [], 0, FIRST_BUCKET
    dtype = parameters[0].dtype
    for parameter in reversed(parameters):
        elements += parameter.numel()
        if elements * dtype.itemsize >= limit:
            buckets.append(torch.empty(elements, dtype=dtype))
            elements, limit = 0, BUCKET
    return [*buckets, torch.empty(elements, dtype=dtype)] if elements else buckets
