"""Kernels that PyTorch has for CUDA alone, and `nn.DataParallel`'s copies between GPUs."""

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .homes import gpu_index, on_gpu, place
from .patches import Patches


def _per_channel(x: Tensor) -> tuple[list[int], list[int]]:
    """Return the dimensions that batch normalization averages, and the shape of a number a channel."""
    return [d for d in range(x.dim()) if d != 1], [-1 if d == 1 else 1 for d in range(x.dim())]


def _batch_norm_stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    dims, _ = _per_channel(x)
    variance, mean = torch.var_mean(x.float(), dims, correction=0)
    return mean, (variance + eps).rsqrt()


def _gather_stats(
    x: Tensor,
    mean: Tensor,  # (ranks, C)
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,  # (ranks,)
) -> tuple[Tensor, Tensor]:
    weight = (counts / counts.sum())[:, None]
    average = (weight * mean).sum(0)
    variance = (weight * (invstd**-2 - eps + (mean - average) ** 2)).sum(0)
    if running_mean is not None and running_var is not None:
        total = counts.sum()
        running_mean += momentum * (average - running_mean)
        running_var += momentum * (variance * total / (total - 1) - running_var)
    return average, (variance + eps).rsqrt()


def _elemt(x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, eps: float) -> Tensor:
    _, shape = _per_channel(x)
    y = (x - mean.view(shape)) * invstd.view(shape)
    if weight is not None:
        y = y * weight.view(shape)
    return (y if bias is None else y + bias.view(shape)).to(x.dtype)


def _backward_reduce(
    g: Tensor, x: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None, for_x: bool, for_w: bool, for_b: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dims, shape = _per_channel(x)
    sum_g = g.float().sum(dims)
    sum_g_x = (g.float() * (x.float() - mean.view(shape))).sum(dims)
    return sum_g, sum_g_x, sum_g_x * invstd, sum_g.clone()


def _backward_elemt(
    g: Tensor,
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_g: Tensor,
    sum_g_x: Tensor,
    counts: Tensor,
) -> Tensor:
    _, shape = _per_channel(x)
    total = counts.sum()
    slope = (x - mean.view(shape)) * (invstd**2 * sum_g_x / total).view(shape)
    scale = invstd if weight is None else invstd * weight
    return ((g - (sum_g / total).view(shape) - slope) * scale.view(shape)).to(x.dtype)


def _to(tensor: Tensor, device: int) -> Tensor:
    return tensor.to("cpu" if device < 0 else torch.device("cuda", device))


def _scatter(x: Tensor, devices: Sequence[int], sizes: Any, dim: int, streams: Any) -> tuple[Tensor, ...]:
    parts = x.split(sizes, dim) if sizes else x.chunk(len(devices), dim)
    return tuple(_to(part, device) for part, device in zip(parts, devices, strict=False))


def _gather(parts: Sequence[Tensor], dim: int, device: int | None) -> Tensor:
    return torch.cat([_to(part, torch.cuda.current_device() if device is None else device) for part in parts], dim)


def _broadcast(tensors: Sequence[Tensor], devices: Sequence[int], buffer_size: int) -> list[list[Tensor]]:
    return [[_to(tensor, device) for tensor in tensors] for device in devices]


def _empty_strided(size: Sequence[int], stride: Sequence[int], **options: Any) -> Tensor:
    """Make a tensor on a GPU where C++ asks for one while the mode is off: a compiler computes with constants so."""
    index = gpu_index(options["device"])
    return place(torch.empty_strided(size, stride, dtype=options["dtype"]), index)


def _with_lengths(base: Any) -> Any:
    """Let the CTC loss take lengths of the CPU, as CUDA's does."""

    @functools.wraps(base)
    def ctc_loss(log_probs: Tensor, targets: Tensor, *lengths: Any, **kwargs: Any) -> Tensor:
        if on_gpu(log_probs):
            lengths = tuple(
                value.to(log_probs.device) if isinstance(value, Tensor) and not on_gpu(value) else value
                for value in lengths
            )
        return base(log_probs, targets, *lengths, **kwargs)

    return ctc_loss


def install(patches: Patches) -> None:
    """Register the kernels."""
    patches.put(torch, "ctc_loss", _with_lengths(torch.ctc_loss))
    library = torch.library.Library("aten", "IMPL")
    patches.later(library._destroy)
    for name, function in {
        "batch_norm_stats": _batch_norm_stats,
        "batch_norm_gather_stats_with_counts": _gather_stats,
        "batch_norm_elemt": _elemt,
        "batch_norm_backward_reduce": _backward_reduce,
        "batch_norm_backward_elemt": _backward_elemt,
    }.items():
        library.impl(name, function, "CPU")
    with warnings.catch_warnings():  # a build of PyTorch for CUDA warns that it has one already
        warnings.simplefilter("ignore", UserWarning)
        library.impl("empty_strided", _empty_strided, "CUDA")
    copies = {"_scatter": _scatter, "_gather": _gather, "_broadcast_coalesced": _broadcast}
    patches.put_all(torch._C, copies)
