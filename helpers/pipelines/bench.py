"""The toy model on this rank's engine, ready for a step."""

import torch.distributed as dist
from torch import Tensor

from .engine import Engine
from .pipeline import Pipeline
from .placement import stage_count
from .toy import toy_batch, toy_stages

ROWS = 8  # of a micro-batch


def set_up(line: Pipeline, tick: float = 0.0) -> tuple[Engine, list[Tensor], list[Tensor]]:
    """Return this rank's engine, inputs and targets. All ranks make all stages and keep their own.

    Args:
        line: what will run.
        tick: seconds of a tick, to which actions keep; 0 for as fast as it goes.
    """
    modules = toy_stages(stage_count(line.placement))
    chunks = [modules[stage] for stage in line.placement[dist.get_rank()]]
    x, y = toy_batch(ROWS * line.micro_batches, line.micro_batches)
    return Engine(chunks, line.placement, lambda kind, stage: tick * line.costs.of(kind, stage)), x, y
