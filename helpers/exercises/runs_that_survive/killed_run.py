"""A real process that trains and saves, and is killed at random moments until it has done its work.

Steps and saves take a fixed time, most of which the process sleeps, so that a busy machine changes little and several
runs can share it. The kills are real: SIGKILL from outside, in the middle of whatever it does.
"""

import itertools
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...core.fresh_process import start_process
from ...core.sign_of_life import sign_of_life
from ...ranks.rank import PRELOAD

LIMIT = 60.0  # seconds of all runs together
SLOWEST = 2.0  # times the time that steps and saves should take; beyond it the machine is too busy to tell


@dataclass(frozen=True)
class KilledRun:
    """What became of a run.

    Attributes:
        work: seconds of training that it had to do.
        seconds: how long it took.
        kills: when it was killed, in seconds from its start.
        parts: seconds of useful training, training done again, saving and restarting.
        restart: seconds of a restart, on average.
        busy: steps took so much longer than they should that the machine must have been too busy.
    """

    work: float
    seconds: float
    kills: list[float]
    parts: Mapping[str, float]
    restart: float
    busy: bool

    @property
    def goodput(self) -> float:
        """Useful training as a share of the time."""
        return self.work / self.seconds


def killed_runs(
    intervals: Mapping[str, int], steps: int, tick: float, save: float, mtbf: float
) -> dict[str, KilledRun]:
    """Run `steps` steps under random kills, once with each interval, all at the same time.

    Args:
        intervals: by name, after how many steps a checkpoint is written.
        steps: of training, in each run.
        tick: seconds of a step.
        save: seconds of a checkpoint.
        mtbf: mean seconds between two kills; all runs are killed at the same moments.
    """
    chance = random.Random(4)
    kills = list(itertools.accumulate(chance.expovariate(1 / mtbf) for _ in range(int(LIMIT / mtbf) + 1)))
    found: dict[str, KilledRun] = {}

    def one(name: str) -> None:
        with tempfile.TemporaryDirectory(prefix="killed-", ignore_cleanup_errors=True) as folder:
            found[name] = _run(Path(folder), (steps, intervals[name], tick, save), kills)

    threads = [threading.Thread(target=one, args=(name,)) for name in intervals]
    with sign_of_life(f"{len(intervals)} runs that are killed again and again"):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return {name: found[name] for name in intervals if name in found}


def _run(folder: Path, job: tuple[int, int, float, float], kills: list[float]) -> KilledRun:
    """Start the trainer, kill it at each of `kills`, start it again, until it has done its work."""
    diary = folder / "diary"
    warm = _start(folder / "warm-up", (1, 1, 0.0, 0.0))  # so that the first start costs no more than the others
    warm.join()
    start, deaths, process = time.monotonic(), [], None
    try:
        for when in [*kills, LIMIT]:
            process = process or _start(folder, job)
            process.join(max(0.0, start + when - time.monotonic()))
            if process.exitcode == 0 or when == LIMIT:
                break
            os.kill(process.pid, signal.SIGKILL)
            deaths.append(time.monotonic())
            process.join()
            process = None
    finally:
        if process is not None and process.is_alive():
            process.kill()
            process.join()
    return _told(_entries(diary), start, deaths, job)


def _start(folder: Path, job: tuple[int, int, float, float]) -> Any:
    folder.mkdir(exist_ok=True)
    return start_process(train, (str(folder), *job), [*PRELOAD, __name__], "trainer")


def train(folder: str, steps: int, interval: int, tick: float, save: float) -> None:
    """Train from the newest checkpoint on; write down what is done, with its time."""
    torch.set_num_threads(1)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    checkpoint, draft, step = Path(folder, "checkpoint"), Path(folder, "draft"), 0
    if checkpoint.exists():
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        step = state["step"]
    with Path(folder, "diary").open("a", buffering=1) as diary:
        diary.write(f"started {step} {time.monotonic()}\n")
        while step < steps:
            end = time.monotonic() + tick
            model(torch.ones(8, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(max(0.0, end - time.monotonic()))
            step += 1
            diary.write(f"step {step} {time.monotonic()}\n")
            if step % interval == 0 and step < steps:
                end = time.monotonic() + save
                torch.save({"model": model.state_dict(), "step": step}, draft)
                time.sleep(max(0.0, end - time.monotonic()))
                os.replace(draft, checkpoint)
                diary.write(f"saved {step} {time.monotonic()}\n")


def _entries(diary: Path) -> list[tuple[str, int, float]]:
    lines = diary.read_text().splitlines() if diary.exists() else []
    return [(line.split()[0], int(line.split()[1]), float(line.split()[2])) for line in lines if len(line.split()) == 3]


def _told(
    entries: list[tuple[str, int, float]], start: float, deaths: list[float], job: tuple[int, int, float, float]
) -> KilledRun:
    """Make a result of what the trainer has written down."""
    steps, _, tick, save = job
    counts = {kind: sum(entry[0] == kind for entry in entries) for kind in ("started", "step", "saved")}
    end = entries[-1][2] if entries and entries[-1][1] == steps else time.monotonic()
    begins = [start, *deaths]
    starts = [when for kind, _, when in entries if kind == "started"]
    restarts = [min((s for s in starts if s > begin), default=begin) - begin for begin in begins]
    spans = [
        (b[2] - a[2]) / tick for a, b in itertools.pairwise(entries) if b[0] == "step" and a[0] in ("started", "step")
    ]
    parts = {"useful": steps * tick, "done again": (counts["step"] - steps) * tick, "saving": counts["saved"] * save}
    parts["restarting"] = max(0.0, end - start - sum(parts.values()))  # and steps and saves that a kill cut short
    busy = not spans or sorted(spans)[len(spans) // 2] > SLOWEST or end - start > 0.95 * LIMIT
    return KilledRun(
        steps * tick,
        end - start,
        [death - start for death in deaths],
        parts,
        sum(restarts) / len(restarts),
        busy or counts["step"] < steps,
    )
