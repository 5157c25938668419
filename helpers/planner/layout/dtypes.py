"""The dtypes of a layout: what matmuls compute in, and what a rank's weights are stored in."""

import torch

from .layout import Layout

LOW = {"bf16": torch.bfloat16, "bf16-amp": torch.bfloat16, "fp8": torch.bfloat16, "fp16-amp": torch.float16}
"""What matmuls compute in, by precision; FP32 where it is not here."""


def weight_dtype(layout: Layout) -> torch.dtype:
    """Return the dtype of the weights that a rank holds, before sharding."""
    sixteen = layout.precision == "bf16" or layout.engine == "megatron"
    return LOW.get(layout.precision, torch.float32) if sixteen else torch.float32
