"""What the CPU has in place of CUDA's kernels: the same shapes are kept, and the values are right.

Predictions and real ranks both run with these. Ring attention stays what it is in the planner: a program of the right
shapes, whose values are none.
"""

import contextlib
from collections.abc import Iterator
from unittest.mock import patch

from helpers.planner.layout import attention, kernels, parallelize, stage_run, trace

import torch

_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class RmsNorm(torch.autograd.Function):
    """A norm that keeps its input and a number a row, as CUDA's fused kernel does."""

    @staticmethod
    def forward(ctx, x, weight):
        scale = x.float().pow(2).mean(-1, keepdim=True).add_(1e-6).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        return (x * scale).to(x.dtype).mul_(weight)

    @staticmethod
    def backward(ctx, gradient):
        x, weight, scale = ctx.saved_tensors
        normed = x * scale
        of_weight = (gradient * normed).flatten(0, -2).sum(0)
        of_normed = gradient * weight
        of_x = (of_normed - normed * (of_normed * normed).mean(-1, keepdim=True)) * scale
        return of_x.to(x.dtype), of_weight.to(weight.dtype)


def rms_norm(x, weight):
    return RmsNorm.apply(x, weight.to(x.dtype))


def flash(q, k, v, causal=True):
    return _FLASH(q, k, v, 0.0, causal)[0]


def block(q, k, v, causal):
    return _FLASH(q, k, v, 0.0, causal)


def block_backward(gradient, operands, out, lse, causal):
    return _FLASH_BACKWARD(gradient, *operands, out, lse, 0.0, causal)


class EagerTrace(trace.Trace):
    """No compiler fuses anything in these ranks."""

    def compile(self, apart):
        pass


@contextlib.contextmanager
def cpu_kernels() -> Iterator[None]:
    """Let stages run the CPU's kernels, uncompiled, and count bytes as they are: nothing is rounded up."""
    with contextlib.ExitStack() as patches:
        for module, name, new in (
            (attention, "flash", flash),
            (attention, "_block", block),
            (attention, "_block_backward", block_backward),
            (attention, "rms_norm", rms_norm),
            (kernels, "rms_norm", rms_norm),
            (parallelize, "_KEPT", (_FLASH.default,)),
            (stage_run, "Trace", EagerTrace),
            (trace, "ROUNDING", 1),
        ):
            patches.enter_context(patch.object(module, name, new))
        yield
