"""The memory of FSDP (ZeRO-3) in plain PyTorch: `fully_shard` itself runs, on fake tensors and a fake process group.

So the shards, what is gathered for a block and what waits to be reduced are in the record like all other tensors; no
formula stands in for them. Engines that split a model are in `layout/fsdp.py`.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..config import RecipeError
from .blocks import find_blocks
from .contexts import shapes_uncounted
from .strategy import Strategy


@contextmanager
def fake_process_group(ranks: int) -> Iterator[None]:
    """Open a process group whose collectives return at once."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    hook = sys.excepthook  # which a process group replaces, to put its rank before tracebacks
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook


def local_parts(trained: Sequence[Tensor]) -> list[Tensor]:
    """Return this rank's shards as plain tensors.

    A DTensor works out its shapes on tensors of full size, which a count would take for memory.
    """
    return [p._local_tensor.detach().requires_grad_() for p in trained]


def give_gradients(parts: Sequence[Tensor], trained: Sequence[Tensor]) -> None:
    """Give each of `local_parts` its part of the gradient."""
    for part, parameter in zip(parts, trained, strict=True):
        part.grad = parameter.grad._local_tensor


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
        """Open a fake process group, and leave the shapes of collectives uncounted."""
        from torch.distributed.device_mesh import init_device_mesh

        if dist.is_initialized():
            raise RecipeError("A process group is open in this process: plan zero3 in another one.")
        if find_spec("torch.distributed._meta_registrations") is None:  # PyTorch 2.9 has the shapes of collectives here
            import_module("torch.distributed._tools.fake_collectives")
        with fake_process_group(self.recipe.ranks):
            self._mesh = init_device_mesh("cpu", (self.recipe.ranks,))
            with shapes_uncounted():
                yield

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
        """Return this rank's shards."""
        return local_parts(trained)

    def before_optimizer_step(self, trained: list[Tensor], own: list[Tensor]) -> None:
        """Give each shard its gradient."""
        give_gradients(own, trained)

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
        return self.ring(recipe.gradient_accumulation_steps, 2 * gathered + trained_bytes)
