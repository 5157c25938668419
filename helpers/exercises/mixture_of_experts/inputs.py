"""What the checks draw from a seed: tokens, the experts that they choose, and the experts' matrices."""

from dataclasses import dataclass

import torch
from torch import Tensor

WIDTH, HIDDEN = 6, 5


@dataclass(frozen=True)
class Drawn:
    """Inputs of a layer, the same on every rank that draws them.

    Attributes:
        x: tokens (n, WIDTH).
        chosen: for each token k different experts (n, k).
        weights: of the chosen, (n, k), summing to 1.
        up, down: matrices of all experts, (E, HIDDEN, WIDTH) and (E, WIDTH, HIDDEN).
        goal: factor of the output before it is summed, (n, WIDTH).
    """

    x: Tensor
    chosen: Tensor
    weights: Tensor
    up: Tensor
    down: Tensor
    goal: Tensor


def drawn(seed: int, tokens: int, favor: list[float], k: int = 2, dtype: torch.dtype = torch.float64) -> Drawn:
    """Draw `tokens` tokens, each of which chooses k experts.

    Args:
        favor: how much each expert is favored; below -50 it is never chosen while there are k others.
    """
    generator = torch.Generator().manual_seed(seed)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    likes = numbers(tokens, len(favor)) + torch.tensor(favor, dtype=torch.float64)
    chosen = likes.argsort(dim=1, descending=True)[:, :k]
    weights = likes.gather(1, chosen).softmax(dim=1)
    up, down = numbers(len(favor), HIDDEN, WIDTH), numbers(len(favor), WIDTH, HIDDEN)
    rest = [numbers(tokens, WIDTH) for _ in range(2)]
    return Drawn(rest[0].to(dtype), chosen, weights.to(dtype), up.to(dtype), down.to(dtype), rest[1].to(dtype))


def leaf(tensor: Tensor) -> Tensor:
    """Return a copy of `tensor` that collects a gradient."""
    return tensor.detach().clone().requires_grad_()
