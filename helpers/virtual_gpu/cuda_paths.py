"""Functions that PyTorch takes apart otherwise for CUDA than for the CPU, so that other tensors are saved.

Attention, dropout and RMSNorm have one kernel each on CUDA, with results of their own; the planner knows them, and here
tensors of a virtual GPU take the same way. Tensors of the CPU go on as they were.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..planner.simulate.cuda_kernels import CudaKernels, FusedRmsNorm
from .hollow import is_hollow
from .homes import index_of
from .machine import Machine
from .patches import Patches

aten = torch.ops.aten
_kernels = CudaKernels(autocast=None)  # autocast has done its work before


class _RmsNorm(torch.autograd.Function):
    """RMSNorm that keeps its input and one number for each row, and has no other tensors on the GPU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, dims: int, eps: float) -> Tensor:
        """x: (..., n); weight: (n,) or None; `dims`: how many of the last dimensions are normed."""
        scales = torch.empty(x.shape[: x.dim() - dims], dtype=torch.float32, device=x.device)
        out = torch.empty_like(x)
        ctx.save_for_backward(x, weight, scales)
        ctx.dims = tuple(range(-dims, 0))
        with torch._C._DisableTorchDispatch():
            rows = x.detach().float()
            wide = (rows.square().mean(ctx.dims, keepdim=True) + eps).rsqrt()
            scales.copy_(wide.view(scales.shape))
            out.copy_(rows * wide if weight is None else rows * wide * weight.detach().float())
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        """gradient: (..., n)."""
        x, weight, scales = ctx.saved_tensors
        for_x, for_weight = torch.empty_like(x), None if weight is None else torch.empty_like(weight)
        with torch._C._DisableTorchDispatch():
            g, rows = gradient.float(), x.detach().float()
            wide = scales.view(*scales.shape, *(1 for _ in ctx.dims))
            normed = rows * wide
            if weight is not None:
                for_weight.copy_(
                    (g * normed).flatten(0, -1 - len(ctx.dims)).sum(0) if g.dim() > len(ctx.dims) else g * normed
                )
                g = g * weight.detach().float()
            for_x.copy_(wide * (g - normed * (g * normed).mean(ctx.dims, keepdim=True)))
        return for_x, for_weight, None, None


def _rms_norm(x: Tensor, shape: list[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    if is_hollow(x) or type(x) not in (Tensor, torch.nn.Parameter):
        return FusedRmsNorm.apply(x, weight, len(shape))
    return _RmsNorm.apply(x, weight, len(shape), torch.finfo(x.dtype).eps if eps is None else eps)


def _dropout(x: Tensor, p: float, train: bool) -> Tensor:
    if not train or p == 0 or not x.numel():
        return x
    return aten.native_dropout(x, p, True)[0] if p < 1 else aten.dropout.default.decompose(x, p, train)


def _one_hot(x: Tensor, num_classes: int = -1) -> Tensor:
    """CUDA does not look whether the classes are in range."""
    if num_classes <= 0:
        return aten.one_hot.default.decompose(x, num_classes)
    result = torch.zeros((*x.shape, num_classes), dtype=torch.int64, device=x.device)
    return result.scatter_(-1, x.unsqueeze(-1), 1)


_PATHS: dict[str, Callable[..., Tensor]] = {
    "scaled_dot_product_attention": _kernels._attention,
    "dropout": _dropout,
    "rms_norm": _rms_norm,
    "one_hot": _one_hot,
}


def install(patches: Patches, machine: Machine) -> None:
    """Register the paths for tensors on a virtual GPU."""
    _kernels.capability = machine.capability
    library = torch.library.Library("aten", "IMPL")
    patches.later(library._destroy)
    for name, path in _PATHS.items():
        op = getattr(aten, name).default

        def choose(*args: Any, op: Any = op, path: Any = path, **kwargs: Any) -> Any:
            here = any(index_of(x) is not None for x in args if isinstance(x, Tensor))  # undecided: the CPU's way
            return path(*args, **kwargs) if here else op.decompose(*args, **kwargs)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a kernel is replaced is meant
            for key in ("AutogradCPU", "CPU"):
                library.impl(name, choose, key)
