"""A step on a grid of ranks beside the same step in one process."""

from typing import Any

from helpers.pipelines.toy import toy_batch, toy_stages

import torch
import torch.nn.functional as F
from torch import nn


def off_one_process(results: list[Any], rows: int, micro_batches: int) -> tuple[float, float]:
    """Return how far loss and gradients of a grid are from those of one process on the whole batch, relative.

    Args:
        results: for each rank its coordinates (a dict with "pipeline" and "data"), its loss, and the gradients of its
            stage in one vector; more may follow.
        rows: of a micro-batch.
        micro_batches: of each data rank.
    """
    count = micro_batches * (1 + max(at["data"] for at, *_ in results))
    model = nn.Sequential(*toy_stages(1, nn.Linear))
    x, y = map(torch.cat, toy_batch(rows * count, count))
    loss = F.mse_loss(model(x), y)
    loss.backward()
    right = torch.cat([p.grad.flatten() for p in model.parameters()])
    last = max(at["pipeline"] for at, *_ in results)
    losses = [mine for at, mine, *_ in results if at["pipeline"] == last]
    by_stage = {at["pipeline"]: gradient for at, _, gradient, *_ in results}
    seen = torch.cat([by_stage[stage] for stage in sorted(by_stage)])
    return abs(sum(losses) / len(losses) / loss.item() - 1), ((seen - right).norm() / right.norm()).item()
