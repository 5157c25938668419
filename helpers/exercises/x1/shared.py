"""What the checks of several parts use: the three precisions, a scaler for FP16, weights as one vector."""

import torch
from torch import Tensor, nn

from ...core.device import pick_device

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
CLIP_OFF = 1e6  # a max_norm that no gradient reaches


def close(seen: float, expected: float, tolerance: float) -> bool:
    """Say whether two figures agree within a relative `tolerance`. NaN agrees with nothing."""
    return abs(seen - expected) <= tolerance * abs(expected) + 1e-12


def weights(model: nn.Module) -> Tensor:
    """Return all parameters of `model` as one vector, FP32, on the CPU."""
    return torch.cat([p.detach().float().flatten() for p in model.parameters()]).cpu()


def scaler_for(dtype: torch.dtype, init_scale: float = 2.0**10) -> torch.amp.GradScaler | None:
    """Return PyTorch's own scaler, which never grows here, for FP16; None for a dtype that needs none."""
    if dtype != torch.float16:
        return None
    return torch.amp.GradScaler(pick_device().type, init_scale=init_scale, growth_interval=10**6)
