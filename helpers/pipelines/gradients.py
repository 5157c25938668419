"""Whether a pipeline computes what one process computes: loss and gradients of a step, without a clock."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ..ranks.run import run_ranks
from .bench import ROWS, set_up
from .pipeline import Pipeline
from .toy import toy_batch, toy_stages


def distance_from_one_process(line: Pipeline) -> float:
    """Run `line` on ranks; return how far its gradients are from those of one process, relative to their length.

    Raises:
        Stuck: the lists do not fit together; real ranks would wait for each other.
    """
    line.simulated()
    run = run_ranks(_trained, len(line.schedules), line, device="cpu", measure=False, show=False)
    by_stage = {stage: gradient for gradients in run.results for stage, gradient in gradients.items()}
    seen = torch.cat([by_stage[stage] for stage in sorted(by_stage)])
    right = gradient_of_one_process(line.micro_batches)
    return ((seen - right).norm() / right.norm()).item()


def gradient_of_one_process(micro_batches: int) -> Tensor:
    """Return the gradient of the toy model on the whole batch, all at once in this process."""
    model = nn.Sequential(*toy_stages(1))
    x, y = (torch.cat(parts) for parts in toy_batch(ROWS * micro_batches, micro_batches))
    F.mse_loss(model(x), y).backward()
    return gradient_of(model)


def gradient_of(module: nn.Module) -> Tensor:
    """Return all gradients in one vector; NaN for those that are missing."""
    parts = [torch.full_like(p, torch.nan) if p.grad is None else p.grad for p in module.parameters()]
    return torch.cat([part.flatten().cpu() for part in parts])


def _trained(line: Pipeline) -> dict[int, Tensor]:
    engine, x, y = set_up(line)
    engine.step(line.schedules[dist.get_rank()], x, y)
    stages = line.placement[dist.get_rank()]
    return {stage: gradient_of(module) for stage, module in zip(stages, engine.chunks, strict=True)}
