"""Weights as a vector, and whether two figures agree."""

import torch
from torch import Tensor, nn


def close(seen: float, expected: float, tolerance: float) -> bool:
    """Say whether two figures agree within a relative `tolerance`. NaN agrees with nothing."""
    return abs(seen - expected) <= tolerance * abs(expected) + 1e-12


def weights(model: nn.Module) -> Tensor:
    """Return all parameters of `model` as one vector, FP32, on the CPU."""
    return torch.cat([p.detach().float().flatten() for p in model.parameters()]).cpu()
