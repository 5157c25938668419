"""Operations that one fused kernel does on a GPU, by the bytes that it reads, writes and keeps."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..simulate.cuda_kernels import FusedRmsNorm


class _OnePass(torch.autograd.Function):
    """Reads and writes a tensor once, forward and backward, and keeps nothing: rotating queries and keys."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.neg()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.neg()


def one_pass(x: Tensor) -> Tensor:
    """Return a tensor like x, as a kernel does that passes over it once. Its values are not those of a rotation."""
    return _OnePass.apply(x)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Return what CUDA's fused RMS norm of the last dimension returns and keeps; values are not those of a norm."""
    return FusedRmsNorm.apply(x, weight.to(x.dtype), 1)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the layer norm of the last dimension."""
    return F.layer_norm(x, (x.shape[-1],), weight.to(x.dtype), bias.to(x.dtype))


class Norm(nn.Module):
    """RMSNorm or LayerNorm, by the model's sizes."""

    def __init__(self, width: int, with_bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width)) if with_bias else None

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, S, D)."""
        return rms_norm(x, self.weight) if self.bias is None else layer_norm(x, self.weight, self.bias)


def activate(gate: Tensor, x: Tensor | None = None) -> Tensor:
    """Return silu(gate) * x, or gelu(gate) where there is no second factor."""
    return F.gelu(gate, approximate="tanh") if x is None else F.silu(gate) * x


class _Dropout(torch.autograd.Function):
    """Dropout as CUDA's kernel does it: a mask of one byte per element is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(torch.empty_like(x, dtype=torch.bool))
        return x.neg()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.mul(ctx.saved_tensors[0])


def drop(x: Tensor, rate: float) -> Tensor:
    """Return a tensor like x, as dropout with its mask returns it; with a rate of 0, x itself."""
    return _Dropout.apply(x) if rate else x


class _FusedLoss(torch.autograd.Function):
    """Cross-entropy in one kernel: it keeps the logits and a number a row, and writes nothing else of their size."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        rows = logits.amax(-1)  # one pass over the logits, as the row sums of their exponentials take
        ctx.save_for_backward(logits, labels, rows.float())
        return rows.float().mean()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.saved_tensors[0].neg(), None


def fused_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return a mean loss as a compiled cross-entropy does; its value is none. logits: (T, V), labels: (T,)."""
    return _FusedLoss.apply(logits, labels)
