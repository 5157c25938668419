"""Random kills: start a run, kill one of its ranks with SIGKILL at a random moment, start it again, a hundred times.

`python -m tests.kills x6 --kills 100` does it to the reference of exercise X6, `fsdp` to an exported script with FSDP
over two ranks; the other scripts are in `SCRIPTS`. With `--signal TERM` all ranks of a script get SIGTERM, which lets
them save. After each kill every published checkpoint is compared, bit for bit,
with what the uninterrupted run had at that step; when a run has come to its end, its last checkpoint is. At the end no
process may be left. Delays are drawn from the seed; which line they hit is up to the machine.
"""

import argparse
import contextlib
import json
import logging
import os
import random
import re
import runpy
import shutil
import signal
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from helpers.exercises.reference import x6
from helpers.exercises.x6.chains import _train
from helpers.exercises.x6.entries import entries_of, steps_of
from helpers.exercises.x6.job import Run
from helpers.exercises.x6.processes import packed
from helpers.exercises.x6.states import print_of
from helpers.planner import ParallelConfig, Recipe
from helpers.planner.script import training_script
from helpers.ranks import rank as ranks_of_a_run
from helpers.ranks.failure import RankError
from helpers.ranks.run import run_ranks

import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

STEPS, EVERY = 12, 2
LONGEST_CHAIN = 8  # kills, after which a run may come to its end
DDP = ParallelConfig(shard=2, zero="none")
SCRIPTS = {
    "fsdp": (Recipe("llama-3.2-1b", precision="bf16-amp", parallel=ParallelConfig(shard=2)), "pytorch"),
    "ddp": (
        Recipe("gpt2", precision="bf16-amp", gradient_accumulation_steps=2, parallel=DDP),
        "pytorch",
    ),  # with dropout
    "adapters": (Recipe("llama-3.2-1b", lora_rank=8, lora_dropout=0.1, checkpointing="every"), "pytorch"),
    "fp16": (Recipe("gpt2", precision="fp16-amp"), "pytorch"),
    "in-backward": (Recipe("gpt2", step_in_backward=True), "pytorch"),
    "trainer": (Recipe("gpt2", precision="bf16-amp"), "trainer"),
}


@dataclass
class Count:
    """What came of the kills.

    Attributes:
        before_any: kills before the run had published anything.
        unfinished: kills that left something unfinished in the folder.
        on_one_rank: starts on one rank.
        torn: published checkpoints that could not be read, or held other bits than the uninterrupted run.
        unlike: runs that ended with other bits.
        left: processes that were still there at the end.
    """

    kills: int = 0
    runs: int = 0
    before_any: int = 0
    unfinished: int = 0
    on_one_rank: int = 0
    checkpoints: int = 0
    torn: int = 0
    unlike: int = 0
    left: int = 0

    @property
    def right(self) -> bool:
        return self.runs > 0 and not (self.torn or self.unlike or self.left)


class Target(ABC):
    """A program that is killed."""

    ranks: tuple[int, ...] = (2,)  # on how many it may be started; the first number for the run that nobody kills

    @abstractmethod
    def start(self, folder: Path, ranks: int, pids: Path, whole: bool = False) -> None:
        """Run it to its end on so many ranks; `whole`: keep all checkpoints."""

    def published(self, folder: Path) -> dict[int, Path]:
        """Return the checkpoints in `folder` that are taken for whole ones."""
        return {steps_of(entry): entry for entry in entries_of(folder)}

    @abstractmethod
    def read(self, entry: Path) -> dict[str, str]:
        """Return a print of the checkpoint `entry`."""


class Exercise(Target):
    """The reference of X6, which may be started again on one rank."""

    ranks = (2, 2, 1)

    def start(self, folder: Path, ranks: int, pids: Path, whole: bool = False) -> None:
        run = Run(5, (folder, folder.with_name("other")), None, STEPS, EVERY, STEPS if whole else 2)
        answers = packed(x6.train, x6.save, x6.load, x6.gradient)
        run_ranks(_noted, ranks, pids, _train, answers, run, device="cpu", measure=False, show=False, timeout=120)

    def read(self, entry: Path) -> dict[str, str]:
        with tempfile.TemporaryDirectory() as name:
            shutil.copytree(entry, Path(name, entry.name))  # the reference publishes directories
            found = x6.load(Path(name))
        return print_of(found[1]) if found and found[0] == steps_of(entry) else {}


class Script(Target):
    """A script that the planner exports."""

    def __init__(self, scratch: Path, recipe: Recipe, style: str) -> None:
        text = training_script(recipe, style)
        self.ranks, self._trainer = (recipe.ranks,), style == "trainer"
        self._scripts = {False: scratch / "train.py", True: scratch / "keep_all.py"}
        self._scripts[False].write_text(text)
        assert "KEEP = 2 " in text
        self._scripts[True].write_text(text.replace("KEEP = 2 ", f"KEEP = {STEPS} "))

    def start(self, folder: Path, ranks: int, pids: Path, whole: bool = False) -> None:
        every = 1 if whole else EVERY  # SIGTERM saves between two checkpoints
        options = {"--steps": STEPS, "--lr": 1e-3, "--checkpoint-every": every, "--checkpoints": folder}
        line = [str(self._scripts[whole]), "--tiny", "--resume", *(str(x) for pair in options.items() for x in pair)]
        run_ranks(
            _noted, ranks, pids, _run_script, line,
            device="cpu", measure=False, show=False, timeout=300, process_group=False,
        )  # fmt: skip

    def published(self, folder: Path) -> dict[int, Path]:
        if not self._trainer:
            return super().published(folder)
        return {int(path.parent.name.removeprefix("checkpoint-")): path.parent for path in folder.glob("*/run.json")}

    def read(self, entry: Path) -> dict[str, str]:
        done = json.loads((entry / "run.json").read_text())["done"]
        if self._trainer:
            parts = {"model": load_file(entry / "model.safetensors"), "optimizer": _loaded(entry / "optimizer.pt")}
        elif (entry / "state.pt").exists():
            parts = _loaded(entry / "state.pt")
        else:  # shards
            with tempfile.TemporaryDirectory() as name:
                dcp_to_torch_save(entry, Path(name, "state.pt"))
                parts = _loaded(Path(name, "state.pt"))
        return print_of(parts | {"done": done}, "state")


def _loaded(file: Path):
    return torch.load(file, weights_only=False)


def _noted(pids: Path, work, *args) -> None:
    """On a rank: say who this is, then work."""
    (pids / str(os.getpid())).touch()
    torch.set_num_threads(1)
    work(*args)


def _run_script(line: list[str]) -> None:
    """On a rank: be the process that torchrun would have started."""
    sys.argv = line
    os._exit = _end_of_script
    try:
        runpy.run_path(line[0], run_name="__main__")
    except _Ended:
        pass
    except SystemExit as end:
        if end.code:  # SIGTERM, before the first step or later
            os.kill(os.getpid(), signal.SIGKILL)


class _Ended(BaseException):
    """The script has ended itself."""


def _end_of_script(code: int) -> None:
    if code == 0:
        raise _Ended
    os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def _killer(pids: Path, delay: float, dice: random.Random, term: bool) -> Iterator[None]:
    """Kill one rank `delay` seconds after the first one has begun; or let all of them end, by SIGTERM."""
    done, which = threading.Event(), dice.random()

    def kill() -> None:
        while not any(pids.iterdir()):
            if done.wait(0.001):
                return
        if not done.wait(delay):
            there = sorted(int(path.name) for path in pids.iterdir())
            for pid in there if term else there[int(which * len(there)) :][:1]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM if term else signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def kill_at_random(target: Target, kills: int, seed: int, scratch: Path, term: bool = False) -> Count:
    """Kill `target` so often, and compare what is left with the run that is not killed."""
    dice, count, everyone = random.Random(seed), Count(), []
    target.start(scratch / "whole", target.ranks[0], _new(scratch / "pids"), whole=True)
    whole = {step: target.read(entry) for step, entry in target.published(scratch / "whole").items()}
    assert set(range(EVERY, STEPS + 1, EVERY)) <= set(whole), sorted(whole)
    begin = time.monotonic()
    target.start(scratch / "again" / "kept", target.ranks[0], _new(scratch / "pids"))  # all is imported by now
    count.unlike += not _same(target, scratch / "again" / "kept", STEPS, whole)
    long, chain = time.monotonic() - begin, 0  # seconds of a run; kills since it began
    while count.kills < kills or chain:  # the last run comes to its end
        folder = scratch / f"run-{count.runs}" / "kept"
        ranks = dice.choice(target.ranks)
        count.on_one_rank += ranks < target.ranks[0]
        pids = _new(scratch / "pids")
        delay = 1e9 if chain == LONGEST_CHAIN or count.kills == kills else dice.uniform(0, long)
        ended, begin = True, time.monotonic()
        with _killer(pids, delay, dice, term):
            try:
                target.start(folder, ranks, pids)
            except RankError as error:
                if not re.search(r"died \(exit code -(9|15)\)|died as well", str(error)):
                    raise
                ended = False
        everyone += [int(path.name) for path in pids.iterdir()]
        there = target.published(folder)
        count.checkpoints += len(there)
        count.torn += sum(not _same(target, folder, step, whole) for step in there)
        if ended:
            long = 0.7 * long + 0.3 * (time.monotonic() - begin) if chain == 0 else long
            count.unlike += not _same(target, folder, STEPS, whole)
            count.runs, chain = count.runs + 1, 0
        else:
            count.kills, chain = count.kills + 1, chain + 1
            count.before_any += not there
            count.unfinished += folder.is_dir() and len(list(folder.iterdir())) > len(there)
            told = f"{count.kills} of {kills} kills, {count.runs} runs, {count.torn} torn, {count.unlike} unlike"
            print(f"\r{told}", end="", file=sys.stderr, flush=True)
    time.sleep(0.5)
    count.left = sum(map(_lives, everyone))
    return count


def _same(target: Target, folder: Path, step: int, whole: dict[int, dict[str, str]]) -> bool:
    try:
        return target.read(target.published(folder)[step]) == whole[step]
    except Exception as error:
        print(f"\nstep {step}: {type(error).__name__}: {error}", file=sys.stderr)
        return False


def _new(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _lives(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be collected does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("x6", *SCRIPTS))
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--signal", choices=("KILL", "TERM"), default="KILL")
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    logging.getLogger("torch.distributed.device_mesh").setLevel(logging.ERROR)  # shards are read here without a group
    with tempfile.TemporaryDirectory() as name:
        if args.what != "x6":  # what takes long to import, the server imports once for all starts
            family = "gpt2" if "gpt2" in SCRIPTS[args.what][0].model else "llama"
            ranks_of_a_run.PRELOAD.append(f"transformers.models.{family}.modeling_{family}")
            ranks_of_a_run.PRELOAD.append(
                {"trainer": "transformers.trainer", "adapters": "peft"}.get(args.what, "json")
            )
        target = Script(Path(name), *SCRIPTS[args.what]) if args.what != "x6" else Exercise()
        count = kill_at_random(target, args.kills, args.seed, Path(name), args.signal == "TERM")
    print(json.dumps(asdict(count)))
    sys.exit(not count.right)


if __name__ == "__main__":
    main()
