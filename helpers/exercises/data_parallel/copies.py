"""Train many small copies of a classifier at once: rates and seeds side by side, on one batch size."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ...core.data import digits

SHAPES = ((64, 32), (1, 32), (32, 10), (1, 10))  # a hidden layer of 32 and its bias, logits of 10 digits and theirs


def losses_of_copies(batch: int, rates: Sequence[float], warm_up: float = 0.0, seeds: int = 5) -> Tensor:
    """Train with plain SGD for eight epochs of the digits; return mean training losses, (rates, seeds).

    Args:
        batch: rows of a step; all ranks together.
        rates: learning rates; each trains a copy from each seed, which sets its weights and the order of its rows.
        warm_up: the share of the steps in which the rate rises from 0.
    """
    data = digits()
    x, y, epochs = data.train_x.flatten(1), data.train_y, 8
    generators = [torch.Generator().manual_seed(seed) for _ in rates for seed in range(seeds)]
    copies = [torch.stack([_drawn(shape, g) for g in generators]).requires_grad_() for shape in SHAPES]  # (K, in, out)
    rate = torch.tensor(rates).repeat_interleave(seeds)[:, None, None]
    per_epoch = len(x) // batch
    for epoch in range(epochs):
        order = torch.stack([torch.randperm(len(x), generator=g) for g in generators])  # (K, N)
        for i in range(per_epoch):
            rows = order[:, i * batch : (i + 1) * batch]
            loss = F.cross_entropy(_logits(copies, x[rows]).flatten(0, 1), y[rows].flatten(), reduction="sum") / batch
            done = (epoch * per_epoch + i + 1) / (epochs * per_epoch)
            with torch.no_grad():
                for p, gradient in zip(copies, torch.autograd.grad(loss, copies), strict=True):
                    p -= rate * (min(1.0, done / warm_up) if warm_up else 1.0) * gradient
    with torch.no_grad():
        logits = _logits(copies, x.expand(len(generators), -1, -1)).transpose(1, 2)  # (K, 10, N)
        losses = F.cross_entropy(logits, y.expand(len(generators), -1), reduction="none").mean(1)
    return losses.view(len(rates), seeds)


def _drawn(shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator) * (shape[0] ** -0.5 if shape[0] > 1 else 0.0)  # biases begin at 0


def _logits(copies: Sequence[Tensor], x: Tensor) -> Tensor:
    """Map rows x (K, n, 64) to logits (K, n, 10), each copy its own."""
    hidden = torch.relu(torch.baddbmm(copies[1], x, copies[0]))
    return torch.baddbmm(copies[3], hidden, copies[2])
