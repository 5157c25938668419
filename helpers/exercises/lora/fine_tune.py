"""The loop of a fine-tune: what is frozen stays as it is, the rest follows a rate that rises and falls."""

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn


def fine_tune(
    model: nn.Module,
    loss_at: Callable[[int], Tensor],
    steps: int,
    lr: float,
    optimizer: torch.optim.Optimizer | None = None,
) -> float:
    """Train the trainable parameters on `loss_at(step)`; return the seconds it took.

    Args:
        loss_at: gives the loss of a step, from 0 on.
        lr: at its highest, after a tenth of the steps.
        optimizer: AdamW without weight decay where none is given; if one is, its own rates count.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = optimizer or torch.optim.AdamW(trained, lr=lr, weight_decay=0.0)
    rates = [group["lr"] for group in optimizer.param_groups]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, steps, pct_start=max(0.1, 2 / steps))
    model.train()
    start = time.perf_counter()
    for step in range(steps):
        loss_at(step).backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return time.perf_counter() - start
