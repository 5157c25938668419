"""How far an answer is from the right one."""

from collections.abc import Sequence

import torch


def relative_distance(seen: Sequence[float], expected: Sequence[float]) -> float:
    """Return |seen - expected| / |expected|; inf when they have different lengths or are not numbers."""
    if len(seen) != len(expected):
        return float("inf")
    a, b = torch.tensor(seen, dtype=torch.float64), torch.tensor(expected, dtype=torch.float64)
    distance = ((a - b).norm() / b.norm().clamp(min=torch.finfo(b.dtype).tiny)).item()  # of zeros from zeros: zero
    return distance if distance == distance else float("inf")


def too_large(ratio: float) -> str:
    """Say by what factor something is too large or too small."""
    return f"too large by a factor of {ratio:.4g}" if ratio > 1 else f"too small by a factor of {1 / ratio:.4g}"
