"""Chains of starts: a run is killed, started again, killed again, until the last start goes to the end."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ...ranks.failure import RankError
from ..base import Evidence
from ..checking import describe
from ..probing.set_clock import sleepless
from . import plain
from .entries import bytes_in, entries_of, steps_of
from .job import Job, Kill, Run, weights_of
from .processes import packed, run_or_die, unpacked

Answer = Callable[..., Any]
BESIDE = {"notes.txt": "of a colleague", "step-0.torn": "half of a checkpoint"}  # `plain.load` takes no notice of them
SHIFT = 11  # from the seed of a probe to job.seed: with 0, a seed that was left out would not show


@dataclass(frozen=True)
class Start:
    """One start of a run: on how many ranks, and where it ends."""

    ranks: int
    kill: Kill | None = None


@dataclass(frozen=True)
class Chain:
    """Starts of one run, one after the other.

    Attributes:
        settings: values of `Run` that are not the usual ones.
        beside: the folder of rank 0 has the files `BESIDE` from the beginning; if not, it does not exist.
    """

    starts: tuple[Start, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    beside: bool = False


@dataclass(frozen=True)
class Answers:
    """What is started: the answer `train`, and what it calls; without answers to that, what `plain.py` has."""

    train: Answer
    save: Answer = plain.save
    load: Answer = plain.load
    gradient: Answer = plain.gradient

    @property
    def foreign(self) -> bool:
        """Whether rank 1's machine has checkpoints of another run, which only `plain.py` can write."""
        return self.save is plain.save


def _train(answers: bytes, run: Run) -> Evidence:
    """One rank: train as the answer does, and report what could be seen from outside."""
    torch.set_num_threads(1)  # sums in the same order, whatever the number of ranks
    train, *used = unpacked(answers)
    job = Job(run, *used)
    torch.manual_seed(999 + dist.get_rank())  # a process may begin in any random state
    with sleepless(getattr(train, "__globals__", {})):  # no rank waits for another by sleeping
        model = train(job.for_answer())
    return {  # at the moment at which train returns
        "last": newest_in(run.folders[0]) == run.steps,
        "weights": weights_of(model),
        "own": model is job.model,
        "updates": job.updates,
        "lr": job.learning_rate,
        "saves": job.saves,
        "loads": job.loads,
        "overtaken": job.overtaken,
        "unfit": job.unfit,
        "made": job.made or not job.left_nothing(),
        "drawn": len(job.drawn),
    }


def run_chain(answers: Answers, seed: int, chain: Chain) -> Evidence:
    """Start a run again and again, and return what the disk held after each start, and what the last one did."""
    pack = packed(answers.train, answers.save, answers.load, answers.gradient)
    after, last = [], None
    with tempfile.TemporaryDirectory() as name:
        folders = tuple(Path(name) / machine for machine in ("rank0", "rank1"))
        beside = BESIDE if chain.beside else {}
        for file, text in beside.items():
            folders[0].mkdir(exist_ok=True)
            (folders[0] / file).write_text(text)
        for start in chain.starts:
            if answers.foreign:
                _fill_with_another_run(*folders)
            run = Run(seed + SHIFT, folders, start.kill, **chain.settings)
            others = _names(folders[1])
            last = run_or_die(_train, start.ranks, pack, run)
            after.append(
                {
                    "killed": last is None,
                    "newest": newest_in(folders[0]),
                    "entries": len(names := [name for name in _names(folders[0]) if name not in BESIDE]),
                    "others": [name for name in names if not name.startswith("step-")],
                    "bytes": bytes_in(folders[0]) if folders[0].is_dir() else 0,
                    "elsewhere": _names(folders[1]) != others,
                    "lost": [file for file, text in beside.items() if _text(folders[0] / file) != text],
                }
            )
    return {"starts": after, "last": last}


def run_chains(answers: Answers, seed: int, chains: dict[str, Chain]) -> Evidence:
    """Run each chain, and return its evidence by its name: {"error": ..., "text": ...} where ranks failed.

    What comes after ranks that did not come back is not run: {}.
    """
    seen: Evidence = {}
    late = False
    for name, chain in chains.items():
        try:
            seen[name] = {} if late else run_chain(answers, seed, chain)
        except RankError as error:
            late |= error.overdue
            seen[name] = {"error": type(error).__name__, "text": describe(error)}
    return seen


def newest_in(folder: Path) -> int:
    """Return the newest step that is published in `folder`; 0 if there is none."""
    return max((steps_of(entry) for entry in entries_of(folder)), default=0)


def _names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []


def _text(file: Path) -> str:
    """Return what `file` holds; "" if it is not there."""
    return file.read_text() if file.is_file() else ""


def _fill_with_another_run(folder: Path, other: Path) -> None:
    """Put into `other` what `folder` holds, with other weights: another run's, with the same steps."""
    for step in plain.steps_in(folder):
        found = torch.load(folder / f"step-{step}", map_location="cpu")
        other.mkdir(exist_ok=True)
        torch.save(_shifted(found), other / f"step-{step}")


def _shifted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shifted(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_shifted(inner) for inner in value)
    return value + 0.25 if isinstance(value, torch.Tensor) and value.is_floating_point() else value


# -- judging ------------------------------------------------------------------------------------------------


def failed(seen: Evidence, *names: str) -> str | None:
    """Say which of these chains have no evidence, and why."""
    for name in names:
        if "error" in seen[name]:
            return f"{name}: {seen[name]['text']}"
        if "starts" not in seen[name]:
            return f"{name}: not run, since the ranks of a run before it did not come back."
    return None


def wrong_in_chain(seen: Evidence, expected: Evidence, whole: Evidence) -> str | None:
    """Say how the last start of a chain differs from the uninterrupted run `whole` of the same answer."""
    newest = 0
    for number, (start, right) in enumerate(zip(seen["starts"], expected["starts"], strict=True), 1):
        if right["killed"] and not start["killed"]:
            return (
                f"start {number} ended without passing the point at which it was to be killed: "
                "job.load is called once at the start, job.save after every `every` steps."
            )
        if start["newest"] < newest:
            left = f"step {start['newest']}" if start["newest"] else "none"
            return f"start {number} lost the checkpoint of step {newest}; {left} is the newest in the folder after it."
        newest = start["newest"]
    *before, _ = [start["newest"] for start in seen["starts"]]
    begin, steps = (before or [0])[-1], len(whole["last"][0]["updates"])
    for rank, last in enumerate(seen["last"]):
        if len(last["updates"]) != steps - begin:
            return (
                f"after the last start rank {rank} made {len(last['updates'])} updates; step {begin} of {steps} was "
                f"saved, so {steps - begin} are left."
            )
        difference = _first_difference(seen["last"], whole["last"], begin) if not rank else None
        if last["weights"] != whole["last"][0]["weights"]:
            return difference or f"the final weights of rank {rank} are not those of the uninterrupted run."
        drawn = sum(each["drawn"] for each in whole["last"]) * (steps - begin) // (steps * len(seen["last"]))
        if last["drawn"] != drawn:
            return (
                f"after the last start rank {rank} drew {last['drawn']} micro-batches; the remaining steps have "
                f"{drawn}. After load_state_dict a stream continues; do not draw the earlier ones again."
            )
    return None


def _first_difference(ranks: list[Evidence], whole: list[Evidence], begin: int) -> str | None:
    """Say which part of the state an update after the last start had lost."""
    for step in range(begin, begin + len(ranks[0]["updates"])):
        mine = [rank["updates"][step - begin] for rank in ranks]
        right = [rank["updates"][step] for rank in whole]
        lanes = {lane: seen for update in mine for lane, seen in update["lanes"].items()}
        for lane, want in sorted({k: v for update in right for k, v in update["lanes"].items()}.items()):
            got = lanes.get(lane, [])
            if [forward["x"] for forward in got] != [forward["x"] for forward in want]:
                return f"in step {step + 1} lane {lane} sees different rows: a stream's position is part of the state."
            if mine[0]["weights"] == right[0]["weights"] and got[0]["random"] != want[0]["random"]:
                return f"in step {step + 1} lane {lane} draws different random numbers than in the uninterrupted run."
        if mine[0]["weights"] != right[0]["weights"]:
            return f"step {step + 1} begins with different weights than in the uninterrupted run."
        if mine[0]["memory"] != right[0]["memory"]:
            return f"in step {step + 1} the optimizer's averages differ from the uninterrupted run's."
        if mine[0]["buffers"] != right[0]["buffers"]:
            return f"in step {step + 1} the model's buffers differ from the uninterrupted run's."
        if mine[0]["lr"] != right[0]["lr"]:
            return (
                f"in step {step + 1} the learning rate is {mine[0]['lr']!r}; it was {right[0]['lr']!r}. Was the "
                "schedule's state saved after its step, and restored with load_state_dict? Counting steps restores "
                "less. Making a schedule sets the rate, so load the optimizer's state after that."
            )
    return None
