"""Plain versions of the first answers, for the checks of the training loop: what is wrong above costs nothing there."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from .job import LANES, Stream


def save(folder: Path, step: int, state: dict[str, Any], keep: int) -> None:
    """Save `state` as the checkpoint of `step`."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / "unfinished"
    torch.save(state, unfinished)
    unfinished.replace(folder / f"step-{step}")
    for old in steps_in(folder)[:-keep]:
        (folder / f"step-{old}").unlink()


def load(folder: Path) -> tuple[int, dict[str, Any]] | None:
    """Return the newest step and its state; None where nothing has been saved."""
    steps = steps_in(folder)
    return (steps[-1], torch.load(folder / f"step-{steps[-1]}", map_location="cpu")) if steps else None


def steps_in(folder: Path) -> list[int]:
    """Return the steps that are saved in `folder`, ascending. What has another name than `step-N` is left alone."""
    numbers = [entry.name.removeprefix("step-") for entry in folder.glob("step-*")]
    return sorted(int(number) for number in numbers if number.isdecimal())


def gradient(model: nn.Module, streams: dict[int, Stream], random: dict[int, Tensor], micro_batches: int) -> None:
    """Leave in `p.grad` the mean over all micro-batches of both lanes, the same bits on one rank and on two."""
    sums: list[list[Tensor]] = []
    for lane, stream in streams.items():
        model.zero_grad()
        torch.set_rng_state(random[lane])
        for x, y in (next(stream) for _ in range(micro_batches)):
            F.cross_entropy(model(x), y).backward()
        random[lane] = torch.get_rng_state()
        sums.append([p.grad for p in model.parameters()])
    for p, *lanes in zip(model.parameters(), *sums, strict=True):
        p.grad = sum(lanes[1:], lanes[0])
        dist.all_reduce(p.grad)
        p.grad /= LANES * micro_batches
