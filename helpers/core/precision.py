"""What FP32 matmuls are computed in: FP32, or TF32.

From compute capability 8.0 on, a GPU can round the inputs of an FP32 matmul to TF32 (FP32's 8 exponent bits, but only
10 fraction bits), multiply those, and add up in FP32. Inputs and result are stored in FP32; only the digits change.
PyTorch has one setting for matmuls and another for convolutions, with different defaults. It also has two
generations of names for them, and raises an error where one is read after the other has been set; only the newer ones,
`fp32_precision`, are used here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Precision = Literal["ieee", "tf32"]
_SETTINGS = {"matmuls": torch.backends.cuda.matmul, "convolutions": torch.backends.cudnn.conv}


def has_tf32(device: torch.device) -> bool:
    """Return whether `device` has units for TF32: an NVIDIA GPU of compute capability 8.0 or more."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def fp32_precision() -> dict[str, str]:
    """Return what a CUDA GPU computes FP32 "matmuls" and "convolutions" in now: "FP32" or "TF32"."""
    return {what: "TF32" if setting.fp32_precision == "tf32" else "FP32" for what, setting in _SETTINGS.items()}


@contextmanager
def fp32_computed_as(precision: Precision) -> Iterator[None]:
    """Compute FP32 matmuls and convolutions in FP32 ("ieee") or TF32 ("tf32"); afterwards, as before.

    It changes what happens on CUDA GPUs with TF32 units, and nothing elsewhere.
    """
    before = {what: setting.fp32_precision for what, setting in _SETTINGS.items()}
    try:
        for setting in _SETTINGS.values():
            setting.fp32_precision = precision
        yield
    finally:
        for what, setting in _SETTINGS.items():
            setting.fp32_precision = before[what]
