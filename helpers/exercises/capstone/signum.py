"""An optimizer with one number per parameter, which accepts a gradient whole or one micro-batch at a time."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


def add_stochastically(target: Tensor, change: Tensor) -> None:
    """Add FP32 `change` to `target` in place; into BF16 with stochastic rounding.

    BF16 is FP32 without its lower 16 bits. Add a random 16-bit number to those bits and cut them off: the carry rounds
    up with the right probability.
    """
    if target.dtype == torch.float32:
        target.add_(change)
        return
    bits = target.float().add_(change).view(torch.int32)
    bits.add_(torch.randint_like(bits, 2**16)).bitwise_and_(-(2**16))
    target.copy_(bits.view(torch.float32))


class Signum(torch.optim.Optimizer):
    """Steps by the sign of a running mean (Bernstein et al. 2018, signSGD, arXiv:1802.04434).

    m <- momentum * m + (1 - momentum) * (g1 + g2 + ...), then p <- p - lr * sign(m). The mean is linear in the
    gradient, so `take` can add each piece as soon as it exists, and free it. A parameter that has received no gradient
    since the last step is left alone, and so is its mean.

    Args:
        add: adds an FP32 tensor to a weight or a mean, in place.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        momentum: float = 0.9,
        add: Callable[[Tensor, Tensor], Any] = add_stochastically,
    ) -> None:
        self.group_of: dict[Tensor, int] = {}
        self.taken: set[Tensor] = set()
        self.add = add
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    def add_param_group(self, group: dict[str, Any]) -> None:
        super().add_param_group(group)
        for p in self.param_groups[-1]["params"]:
            self.group_of[p] = len(self.param_groups) - 1
            self.state[p]["mean"] = torch.zeros_like(p)

    @torch.no_grad()
    def take(self, p: Tensor) -> None:
        """Move the gradient of `p`, or a piece of it, into the mean, and free it."""
        mean, momentum = self.state[p]["mean"], self.param_groups[self.group_of[p]]["momentum"]
        if p not in self.taken:  # the first piece since the last step: the old mean fades, once
            mean.mul_(momentum)
            self.taken.add(p)
        self.add(mean, p.grad.float() * (1 - momentum))
        p.grad = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.take(p)
                if p in self.taken:
                    self.add(p, self.state[p]["mean"].sign().float() * -group["lr"])
        self.taken.clear()
