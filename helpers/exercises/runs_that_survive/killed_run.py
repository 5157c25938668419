"""A real process that trains and saves, and is killed at random moments until it has done its work.

Steps and saves take a fixed time, most of which the process sleeps, so that a busy machine changes little and several
runs can share it. The kills are real: SIGKILL from outside, in the middle of whatever it does.
"""

import itertools
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from ...core.fresh_process import start_process
from ...core.sign_of_life import sign_of_life
from ...ranks.rank import PRELOAD

LIMIT = 30.0  # seconds of all runs together
SLOWEST = 1.5  # times as long as it should; a machine on which a step takes longer is too busy to tell


@dataclass(frozen=True)
class KilledRun:
    """What became of a run.

    Attributes:
        work: seconds of training that it had to do.
        seconds: how long it took.
        kills: when it was killed, in seconds, on a clock on which each restart takes `restart` seconds.
        parts: seconds of useful training, training done again, saving and restarting.
        step, save, restart: how long each of them took, on average, in seconds.
        busy: the machine was too busy for the figures to mean anything.
    """

    work: float
    seconds: float
    kills: list[float]
    parts: Mapping[str, float]
    step: float
    save: float
    restart: float
    busy: bool

    @property
    def goodput(self) -> float:
        """Useful training as a share of the time."""
        return self.work / self.seconds


@dataclass(frozen=True)
class Job:
    """What one trainer has to do: steps, steps between checkpoints, seconds of a step and of a checkpoint."""

    steps: int
    interval: int
    tick: float
    save: float


def killed_runs(
    intervals: Mapping[str, int], steps: int, tick: float, save: float, mtbf: float
) -> dict[str, KilledRun]:
    """Run `steps` steps under random kills, once with each interval, all at the same time.

    Args:
        intervals: by name, after how many steps a checkpoint is written.
        steps: of training, in each run.
        tick: seconds of a step.
        save: seconds of a checkpoint.
        mtbf: mean seconds from a start to the next kill.
    """
    found: dict[str, KilledRun] = {}

    def one(name: str) -> None:
        with tempfile.TemporaryDirectory(prefix="killed-", ignore_cleanup_errors=True) as folder:
            found[name] = _run(Path(folder), Job(steps, intervals[name], tick, save), mtbf)

    threads = [threading.Thread(target=one, args=(name,)) for name in intervals]
    with sign_of_life(f"{len(intervals)} runs that are killed again and again"):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if any(run.busy for run in found.values()):
        print("This machine is too busy at the moment: what follows says more about it than about checkpoints.")
    return {name: found[name] for name in intervals}


def _run(folder: Path, job: Job, mtbf: float) -> KilledRun:
    """Start the trainer, kill it at random, start it again, until it has done its work."""
    chance, kills, process, log = random.Random(4), [], None, folder / "log"
    warm = _start(folder / "warm-up", Job(1, 1, 0.0, 0.0))  # so that the first start costs no more than the others
    warm.join()
    start = time.monotonic()
    try:
        while time.monotonic() - start < LIMIT:
            process = _start(folder, job)
            while process.is_alive() and _starts(log) <= len(kills) and time.monotonic() - start < LIMIT:
                time.sleep(0.002)
            process.join(min(chance.expovariate(1 / mtbf), max(0.0, start + LIMIT - time.monotonic())))
            if process.exitcode is not None:
                break
            process.kill()
            kills.append(time.monotonic() - start)
            process.join()
    finally:
        if process is not None and process.is_alive():
            process.kill()
            process.join()
    return _told(_entries(log), start, kills, job)


def _start(folder: Path, job: Job) -> BaseProcess:
    folder.mkdir(exist_ok=True)
    return start_process(train, (str(folder), job), [*PRELOAD, __name__], "trainer")


def train(folder: str, job: Job) -> None:
    """Train from the newest checkpoint on; write down what is done, with its time."""
    torch.set_num_threads(1)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    checkpoint, draft, step = Path(folder, "checkpoint"), Path(folder, "draft"), 0
    if checkpoint.exists():
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        step = state["step"]
    with Path(folder, "log").open("a", buffering=1) as log:
        log.write(f"started {step} {time.monotonic()}\n")
        while step < job.steps:
            end = time.monotonic() + job.tick
            model(torch.ones(8, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(max(0.0, end - time.monotonic()))
            step += 1
            log.write(f"step {step} {time.monotonic()}\n")
            if step % job.interval == 0 and step < job.steps:
                end = time.monotonic() + job.save
                torch.save({"model": model.state_dict(), "step": step}, draft)
                time.sleep(max(0.0, end - time.monotonic()))
                os.replace(draft, checkpoint)
                log.write(f"saved {step} {time.monotonic()}\n")


def _starts(log: Path) -> int:
    return log.read_text().count("started") if log.exists() else 0


def _entries(log: Path) -> list[tuple[str, int, float]]:
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return [(line[0], int(line[1]), float(line[2])) for line in lines if len(line) == 3]


def _told(entries: list[tuple[str, int, float]], start: float, kills: list[float], job: Job) -> KilledRun:
    """Make a result of what the trainer has written down."""
    took: dict[str, list[float]] = {"step": [job.tick], "saved": [], "started": []}
    for before, after in itertools.pairwise(entries):
        if after[0] != "started":
            took[after[0]].append(after[2] - before[2])
    begins = [entry[2] for entry in entries if entry[0] == "started"]
    took["started"] = [
        begin - end for begin, end in zip(begins, [start, *(start + kill for kill in kills)], strict=False)
    ]
    step, save = statistics.mean(took["step"]), statistics.mean(took["saved"] or [job.save])
    done = bool(entries) and entries[-1][:2] == ("step", job.steps)
    seconds, work = (entries[-1][2] if done else time.monotonic()) - start, job.steps * job.tick
    counted = len(took["step"]) - 1
    parts = {"useful": work, "done again": (counted - job.steps) * job.tick, "saving": len(took["saved"]) * job.save}
    parts["restarting"] = max(0.0, seconds - sum(parts.values()))  # and steps and saves that a kill cut short
    busy = not done or step > SLOWEST * job.tick or save > SLOWEST * job.save
    restart = statistics.mean(took["started"] or [0.0])
    ran = [start + kill - begin for begin, kill in zip(begins, kills, strict=False)]  # from each start to its kill
    even = list(itertools.accumulate(ran, lambda clock, seconds: clock + restart + seconds))
    return KilledRun(work, seconds, even, parts, step, save, restart, busy)
