"""What the lab builds and later labs use: the course's version of it."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..reference.mixture_of_experts import grouped, nudge, permute, route, unpermute
from .window_model import WIDTH

__all__ = ["MoE", "grouped", "nudge", "permute", "route", "unpermute"]


class MoE(nn.Module):
    """A mixture of experts, from and to (n, WIDTH); it remembers what was chosen in the last forward pass."""

    def __init__(self, experts: int = 8, k: int = 2, hidden: int = 64) -> None:
        super().__init__()
        self.k, self.router = k, nn.Linear(WIDTH, experts, bias=False)
        nn.init.normal_(self.router.weight, std=0.02)
        self.up = nn.Parameter(torch.randn(experts, hidden, WIDTH) / WIDTH**0.5)
        self.down = nn.Parameter(torch.randn(experts, WIDTH, hidden) / (4 * hidden) ** 0.5)
        self.register_buffer("bias", torch.zeros(experts))

    def forward(self, x: Tensor) -> Tensor:
        """Send each token of x (n, WIDTH) to its k experts; return the weighted sums of their results."""
        self.logits = self.router(x)
        self.chosen, weights = route(self.logits, self.k, self.bias)
        self.counts = F.one_hot(self.chosen, len(self.bias)).sum(dim=(0, 1))
        return self.experts(x, weights)

    def experts(self, x: Tensor, weights: Tensor) -> Tensor:
        """Compute what the chosen experts return, in one process."""
        rows, counts, source = permute(x, self.chosen, len(self.up))
        return unpermute(grouped(rows, counts, self.up, self.down), source, weights)
