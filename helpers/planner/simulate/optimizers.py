"""The optimizer of a recipe, and the step inside the backward pass.

PyTorch's own run where it has them. The others are stand-ins that hold, read and write what the real ones do.
"""

import contextlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ..config import BITSANDBYTES, OF_MATRICES, TrainingConfig
from .blocks import find_blocks

BLOCK = 256  # elements of a moment that share a scale, in bitsandbytes
SMALLEST_8BIT = 4096  # parameters with fewer elements keep 32-bit moments

Make = Callable[[list[Tensor]], torch.optim.Optimizer]


def make_optimizers(
    recipe: TrainingConfig, parameters: list[Tensor], matrices: Collection[int] = ()
) -> list[torch.optim.Optimizer]:
    """Return the optimizers of all parameters, or one for each if the step is taken in the backward pass.

    Args:
        recipe: says which.
        parameters: to update.
        matrices: ids of those of them that Muon and GaLore take; AdamW takes the rest.
    """
    options = {"fused": True} if recipe.optimizer_impl == "fused" else {"foreach": recipe.optimizer_impl == "foreach"}

    def make(ps: list[Tensor], name: str = recipe.optimizer) -> torch.optim.Optimizer:
        if name in BITSANDBYTES:
            return BlockWise(ps, 1 if name.startswith("lion") else 2, narrow="8bit" in name)
        if name.startswith("galore"):
            return GaLore(ps, recipe.galore_rank, narrow="8bit" in name)
        plain: dict[str, Make] = {
            "adamw": lambda ps: torch.optim.AdamW(ps, **options),
            "adam": lambda ps: torch.optim.Adam(ps, **options),
            "sgd": lambda ps: torch.optim.SGD(ps, **options),
            "sgd-momentum": lambda ps: torch.optim.SGD(ps, momentum=0.9, **options),
            "adafactor": lambda ps: torch.optim.Adafactor(ps, **options),
            "lion": Lion,
            "muon": torch.optim.Muon,
        }
        return plain[name](ps)

    def with_masters(ps: list[Tensor], name: str) -> torch.optim.Optimizer:
        return MasterWeights(ps, lambda masters: make(masters, name)) if recipe.master_weights else make(ps, name)

    def split(ps: list[Tensor]) -> list[torch.optim.Optimizer]:
        if recipe.optimizer not in OF_MATRICES:
            return [with_masters(ps, recipe.optimizer)]
        rest = "adamw-8bit" if recipe.optimizer == "galore-8bit" else "adamw"
        own = [p for p in ps if id(p) in matrices], [p for p in ps if id(p) not in matrices]
        return [with_masters(each, name) for each, name in zip(own, (recipe.optimizer, rest), strict=True) if each]

    together = [[p] for p in parameters] if recipe.step_in_backward else [parameters]
    return [optimizer for ps in together for optimizer in split(ps)]


def matrices_of(model: nn.Module) -> set[int]:
    """Return the ids of the matrices in the blocks of `model`: what Muon and GaLore are for."""
    return {id(p) for block in find_blocks(model) for p in block.parameters() if p.dim() == 2}


class _Unfused(torch.optim.Optimizer):
    """Updates one parameter after the other; subclasses say how."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure: Callable | None = None) -> None:
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.update(p, p.grad, self.state[p])

    def update(self, p: Tensor, gradient: Tensor, state: dict[str, Tensor]) -> None:
        """Make missing `state`; update `p` in place."""
        raise NotImplementedError


class BlockWise(_Unfused):
    """bitsandbytes' optimizers: moments of a byte an element and a scale a block, or of FP32; one kernel updates.

    Args:
        params: to update.
        moments: 2 of Adam, 1 of Lion.
        narrow: whether they have a byte, where a parameter is not small.
    """

    def __init__(self, params: Any, moments: int, narrow: bool) -> None:
        super().__init__(params)
        self.moments, self.narrow = moments, narrow

    def update(self, p: Tensor, gradient: Tensor, state: dict[str, Tensor]) -> None:
        """Make the moments; read and write what the one kernel does."""
        if not state:
            state |= block_wise_state(p, self.moments, self.narrow)
        p.add_(gradient)
        state["moments"].add_(0)


def block_wise_state(p: Tensor, moments: int, narrow: bool) -> dict[str, Tensor]:
    """Return the moments of `p` as bitsandbytes keeps them."""
    n, narrow = p.numel(), narrow and p.numel() >= SMALLEST_8BIT
    state = {"moments": torch.empty(moments, n, dtype=torch.uint8 if narrow else torch.float32, device=p.device)}
    return state | ({"scales": torch.empty(moments, -(-n // BLOCK), device=p.device)} if narrow else {})


class Lion(_Unfused):
    """Chen et al. 2023 (arXiv 2302.06675), as its authors' code has it: one moment, and the sign of a mixture."""

    def update(self, p: Tensor, gradient: Tensor, state: dict[str, Tensor]) -> None:
        """Mix moment and gradient; move by the sign."""
        if not state:
            state["exp_avg"] = torch.zeros_like(p)
        update = state["exp_avg"] * 0.9 + gradient * 0.1
        p.add_(update.sign_(), alpha=-1e-4)
        state["exp_avg"].mul_(0.99).add_(gradient, alpha=0.01)


class GaLore(_Unfused):
    """Zhao et al. 2024 (arXiv 2403.03507): Adam on gradients of matrices that are projected to a low rank.

    The projection is made anew every few hundred steps, by a singular value decomposition in FP32; here in each step.

    Args:
        params: matrices.
        rank: that is left of their shorter side.
        narrow: moments of a byte.
    """

    def __init__(self, params: Any, rank: int, narrow: bool) -> None:
        super().__init__(params)
        self.rank, self.narrow = rank, narrow

    def update(self, p: Tensor, gradient: Tensor, state: dict[str, Tensor]) -> None:
        """Project, update the moments, project back."""
        long = gradient.shape[0] >= gradient.shape[1]
        u, _, v = torch.linalg.svd(gradient.float(), full_matrices=False)
        state["projection"] = (v[: self.rank] if long else u[:, : self.rank]).to(gradient.dtype, copy=True)
        del u, v
        low = gradient @ state["projection"].t() if long else state["projection"].t() @ gradient
        if "moments" not in state and self.narrow:
            state |= block_wise_state(low, 2, narrow=True)
        elif "moments" not in state:
            state["moments"] = torch.zeros(2, *low.shape, dtype=low.dtype, device=low.device)
        state["moments"].add_(0)
        update = low if self.narrow else state["moments"][0] / (state["moments"][1].sqrt() + 1e-6)
        p.add_(update @ state["projection"] if long else state["projection"] @ update, alpha=-1e-3)


class MasterWeights(torch.optim.Optimizer):
    """Updates FP32 copies of 16-bit parameters, by gradients widened for it, and copies them back (DeepSpeed, Apex).

    Args:
        params: of 16 bits.
        make: makes the optimizer of the copies.
    """

    def __init__(self, params: Sequence[Tensor], make: Make) -> None:
        super().__init__(params, {})
        self.params = list(params)
        self.masters = [p.detach().float().requires_grad_() for p in self.params]
        self.inner = make(self.masters)
        for p, master in zip(self.params, self.masters, strict=True):
            self.state[p]["master"] = master

    @torch.no_grad()
    def step(self, closure: Callable | None = None) -> None:
        """Widen the gradients, update the copies, narrow them."""
        for p, master in zip(self.params, self.masters, strict=True):
            master.grad = None if p.grad is None else p.grad.float()
        self.inner.step()
        for p, master in zip(self.params, self.masters, strict=True):
            p.copy_(master)
            master.grad = None
            self.state[p] |= self.inner.state[master]


def step_in_backward(
    optimizers: list[torch.optim.Optimizer],
    context: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext,
) -> list[RemovableHandle]:
    """Update each parameter as soon as its gradient is complete, then free the gradient.

    Args:
        optimizers: one for each parameter.
        context: makes the context in which a step runs; function modes are off inside the backward pass.

    Returns:
        the hooks' handles. Remove them in the end: a hook holds its optimizer, which holds the parameter, which holds
        the hook, and Python's garbage collector does not see the last of these.
    """

    def update(parameter: Tensor, optimizer: torch.optim.Optimizer) -> None:
        with context():
            optimizer.step()
        optimizer.zero_grad()

    def hook(optimizer: torch.optim.Optimizer) -> RemovableHandle:
        (parameter,) = optimizer.param_groups[0]["params"]
        return parameter.register_post_accumulate_grad_hook(lambda p: update(p, optimizer))

    return [hook(optimizer) for optimizer in optimizers]
