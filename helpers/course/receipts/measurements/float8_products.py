"""Products in FP8 against BF16, of square matrices, casts not counted and counted."""

import functools
import math

import torch
from torch import Tensor

from ....claims.claims import Claims
from ....meter.timing import compare
from ..steps import Skip

_SIZES = (1024, 2048, 4096, 8192)


def measure(claims: Claims, device: torch.device) -> None:
    """Record the speed of `torch._scaled_mm` where the GPU has FP8 units."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 9):
        raise Skip("FP8 products need an NVIDIA GPU with FP8 units (Ada, Hopper or newer)")
    for n in _SIZES:
        a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
        a8, b8 = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
        plain = functools.partial(torch.mm, a, b.t())
        ready = compare(plain, functools.partial(_product, a8, b8), runs=20).speedup
        casting = compare(plain, lambda a=a, b8=b8: _product(a.to(torch.float8_e4m3fn), b8), runs=20).speedup
        size = f"product of {n} x {n}"
        claims.record("C15", "FP8 up to 2x the speed of 16 bit", size, ready, "x", 1.5, math.inf)
        claims.record(
            "C15", "FP8 up to 2x the speed of 16 bit", f"{size}, one factor cast", casting, "x", 1.5, math.inf
        )


def _product(a: Tensor, b: Tensor) -> Tensor:
    one = torch.ones((), device=a.device)
    return torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)
