"""How many bytes of activations each rank of a pipeline holds at once."""

from collections.abc import Mapping

import torch.distributed as dist
from torch import nn

from ..meter.recorder import MemoryMeter
from ..ranks.run import run_ranks
from .bench import set_up
from .pipeline import Pipeline


def activations_held(pipelines: Mapping[str, Pipeline]) -> dict[str, list[int]]:
    """Run one step of each pipeline; return the most bytes of activations that each rank held.

    Args:
        pipelines: by name; all have the same number of ranks.
    """
    for line in pipelines.values():
        line.simulated()  # lists that do not fit together would keep real ranks waiting
    ranks = len(next(iter(pipelines.values())).schedules)
    run = run_ranks(_held, ranks, pipelines, device="cpu", measure=False, timeout=120, show=False)
    return {name: [held[name] for held in run.results] for name in pipelines}


def _held(pipelines: Mapping[str, Pipeline]) -> dict[str, int]:
    held = {}
    for name, line in pipelines.items():
        engine, x, y = set_up(line)  # made before the meter starts: it counts what the pipeline holds
        with MemoryMeter(nn.ModuleList(engine.chunks)) as meter:
            engine.step(line.schedules[dist.get_rank()], x, y)
        held[name] = meter.largest["activations"]
    return held
