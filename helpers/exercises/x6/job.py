"""The run that is to survive: a small model, two streams of rows, and a switch that ends the process at a named point.

Everything that `train` gets goes through this job, so a kill needs no clock: "the 7th forward pass", "the 2nd save".
The job also writes down, before each update, what the update starts from: so a check can say which part of a state was
lost, and not only that the last bits differ.
"""

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..base import Evidence
from ..probing.folder_watch import FolderWatch
from .states import hash_of, unfit

LANES = 2
_sleep = time.sleep


@dataclass(frozen=True)
class Kill:
    """Where a rank dies: at the `count`-th time that it passes the point, counted from when the process started.

    Points: "model" and "stream" (when made), "load", "loaded", "forward", "update", "updated", "save", "saved"; and
    "inside": in a save, when it has changed the folder for the `change`-th time.
    """

    rank: int
    point: str
    count: int = 1
    change: int = 0


def die() -> None:
    """End this process as a power switch would: nothing is caught, nothing is cleaned up."""
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
    _sleep(60)  # not reached


@dataclass(frozen=True)
class Run:
    """How a job is run.

    Attributes:
        folders: of each rank, where it may keep checkpoints; those of ranks above 0 are on other machines.
        slow: seconds that a save takes longer, as over a network. What it is given is written after them.
    """

    seed: int
    folders: tuple[Path, ...]
    kill: Kill | None = None
    steps: int = 8
    every: int = 3
    keep: int = 2
    micro_batches: int = 2
    slow: float = 0.0


class Stream:
    """Micro-batches of one lane, without end: shuffled in each epoch, each row with a little noise.

    `next(stream)` gives `(x, y)`. `state_dict()` says where it is, and after `load_state_dict(state)` it goes on there.
    """

    def __init__(self, seed: int, lane: int, drawn: list[Evidence]) -> None:
        rows = torch.Generator().manual_seed(100 * seed + lane)
        self._x = torch.randn(14, 8, dtype=torch.float64, generator=rows)
        self._y = torch.randint(4, (14,), generator=rows)
        self._noise = torch.Generator().manual_seed(7 * seed + lane)
        self._seed, self._lane, self._drawn = 10 * seed + lane, lane, drawn
        self._epoch = self._position = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self

    def __next__(self) -> tuple[Tensor, Tensor]:
        if self._position + 4 > len(self._y):  # the last rows of an epoch make no whole micro-batch
            self._epoch, self._position = self._epoch + 1, 0
        order = torch.randperm(len(self._y), generator=torch.Generator().manual_seed(1000 * self._seed + self._epoch))
        rows = order[self._position : self._position + 4]
        self._position += 4
        x = self._x[rows] + 0.1 * torch.randn(4, 8, dtype=torch.float64, generator=self._noise)
        self._drawn.append({"lane": self._lane, "x": hash_of(x)})
        return x, self._y[rows]

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "position": self._position, "noise": self._noise.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._epoch, self._position = state["epoch"], state["position"]
        self._noise.set_state(state["noise"])


class Schedule(torch.optim.lr_scheduler.OneCycleLR):
    """One cycle of the rate, which is lower the larger the weights have been: the number of steps does not tell it."""

    size = 0.0

    def step(self, epoch: int | None = None) -> None:
        weights = self.optimizer.param_groups[0]["params"][0].detach()
        self.size = self.size / 2 + weights.abs().mean().item()
        super().step(epoch)

    def get_lr(self) -> list[float]:
        return [rate / (1 + self.size) for rate in super().get_lr()]


def small_model(seed: int) -> nn.Module:
    """Return a classifier with dropout, in FP64; the random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + 50)
        return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(0.3), nn.Linear(32, 4)).double()


class Points:
    """Counts how often this rank passes each point, and ends the process at the one that the kill names."""

    def __init__(self, run: Run, rank: int) -> None:
        self._kill = run.kill if run.kill and run.kill.rank == rank else None
        self._passed: dict[str, int] = {}

    def pass_by(self, point: str) -> None:
        """Note that the rank is at `point`; die if this is where it should."""
        self._passed[point] = self._passed.get(point, 0) + 1
        if self._kill and self._kill.point == point and self._passed[point] == self._kill.count:
            die()

    def inside_save(self) -> Kill | None:
        """Return the kill if it is to happen inside the save that comes now."""
        saves = self._passed.get("save", 0)
        return self._kill if self._kill and self._kill.point == "inside" and self._kill.count == saves else None


class Job:
    """What `train` gets as `job`, as seen by one rank, and what the rank did with it.

    Attributes:
        updates: what each update started from.
        saves: of each call of `save`: the step, the updates that this process had made, the learning rate, `keep`, and
            whether the folder was the job's.
        loads: of each call of `load`: whether the folder was the job's.
        unfit: what a state held that a `save` as in part 1 need not store.
        overtaken: something was computed while `save` was at work.
        made: the folder was not there when the run began, and was there before `save` or `load` was called.
    """

    def __init__(self, run: Run, save: Callable[..., Any], load: Callable[..., Any], gradient: Any) -> None:
        self.run, self._save, self._load, self._gradient = run, save, load, gradient
        self.rank = dist.get_rank()
        self.points = Points(run, self.rank)
        self.updates: list[Evidence] = []
        self.drawn: list[Evidence] = []
        self.saves: list[list[Any]] = []
        self.loads: list[bool] = []
        self.overtaken, self.made, self.unfit = False, False, 0
        self._there = self._folder.exists()
        self.model: nn.Module | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        self._forwards: list[Evidence] = []
        self._gradients: list[int] = []  # since the last update, with how many micro-batches each
        self._updated = self._saving = 0

    def for_answer(self) -> SimpleNamespace:
        """Return the job as the contract describes it."""
        names = ("make_model", "make_optimizer", "make_schedule", "make_stream", "save", "load", "gradient")
        values = {name: getattr(self.run, name) for name in ("steps", "every", "keep", "micro_batches", "seed")}
        return SimpleNamespace(**values, folder=self._folder, **{name: getattr(self, name) for name in names})

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next update."""
        return self._optimizer.param_groups[0]["lr"] if self._optimizer else 0.0

    @property
    def _folder(self) -> Path:
        return self.run.folders[self.rank]

    def make_model(self) -> nn.Module:
        self.model = small_model(self.run.seed)
        self.model.register_buffer("heat", torch.ones((), dtype=torch.float64))  # halved in each update
        self.model.register_forward_hook(lambda model, _, out: out * (1 + model.heat))
        self.model.register_forward_pre_hook(self._before_forward)
        torch.rand(1)  # a layer draws its first weights
        self.points.pass_by("model")
        return self.model

    def make_optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        self._optimizer = torch.optim.AdamW(parameters, lr=0.02, weight_decay=0.1)
        self._optimizer.register_step_pre_hook(self._before_update)
        self._optimizer.register_step_post_hook(self._after_update)
        return self._optimizer

    def make_schedule(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return Schedule(optimizer, max_lr=0.05, total_steps=self.run.steps + 4)

    def make_stream(self, lane: int) -> Stream:
        self.points.pass_by("stream")
        return Stream(self.run.seed, lane, self.drawn)

    def gradient(self, model: nn.Module, streams: Any, random: Any, micro_batches: int) -> None:
        self._gradients.append(micro_batches)
        self._gradient(model, streams, random, micro_batches)

    def save(self, folder: Path, step: int, state: dict[str, Any], keep: int) -> None:
        self.points.pass_by("save")
        self.saves.append([int(step), self._updated, self.learning_rate, int(keep), Path(folder) == self._folder])
        self.unfit = self.unfit or unfit(state)
        self._saving += 1
        self._look(folder)
        _sleep(self.run.slow)
        inside = self.points.inside_save()
        if inside:
            moments = itertools.count(1)
            watch = FolderWatch(folder, lambda _: die() if next(moments) == inside.change else None)
            watch.during(lambda: self._save(folder, step, state, keep))
            die()  # it changes the folder less often
        self._save(folder, step, state, keep)
        self._saving -= 1
        self.points.pass_by("saved")

    def _look(self, folder: Path) -> None:
        """Note whether something other than `save` has made `folder`."""
        self.made |= Path(folder).exists() and not self._there and len(self.saves) < 2

    def left_nothing(self) -> bool:
        """Say whether a rank above 0 has not made its folder."""
        return self.rank == 0 or self._there or not self._folder.exists()

    def load(self, folder: Path) -> Any:
        self.points.pass_by("load")
        self.loads.append(Path(folder) == self._folder)
        self._look(folder)
        found = self._load(folder)
        self.points.pass_by("loaded")
        return found

    def _before_forward(self, _: nn.Module, args: tuple[Any, ...]) -> None:
        self.points.pass_by("forward")
        x = hash_of(args[0])
        lane = next((draw["lane"] for draw in self.drawn if draw["x"] == x), -1)
        self.overtaken |= self._saving > 0
        self._forwards.append({"lane": lane, "x": x, "random": hash_of(torch.get_rng_state()), "rows": len(args[0])})

    def _before_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.points.pass_by("update")
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        memory = [value for p in parameters for _, value in sorted(optimizer.state.get(p, {}).items())]
        lanes: dict[str, list[Evidence]] = {}
        for forward in self._forwards:
            lanes.setdefault(str(forward["lane"]), []).append(forward)
        self.updates.append(
            {
                "weights": hash_of(*parameters),
                "memory": hash_of(*memory),
                "buffers": hash_of(*self.model.buffers()) if self.model else "",
                "lr": self.learning_rate,
                "gradients": self._gradients,
                "lanes": lanes,
            }
        )
        self._forwards, self._gradients = [], []

    def _after_update(self, *_: Any) -> None:
        if self.model:
            self.model.heat *= 0.5
        self._updated += 1
        self.points.pass_by("updated")


def weights_of(model: Any) -> list[float]:
    """Return all parameters of `model` as numbers; none of what is no model."""
    if not isinstance(model, nn.Module):
        return []
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
