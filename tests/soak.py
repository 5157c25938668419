"""Soak: a lab's ranks are started hundreds of times. No verdict may be false, no rank may fail, no process may stay.

`python -m tests.soak 11_data_parallel --runs 200` does it to lab 11. A run is one of the lab's checks that start ranks,
with the reference answers and a seed of its own; the checks take turns. The check of failures starts no ranks:
there a run is a job of the lab's own program, broken in a way that the seed has drawn, and then resumed. After each run
no rank may be left. The last line is the count, as JSON; the exit code is 1 if anything was wrong.
"""

import argparse
import contextlib
import functools
import importlib
import itertools
import json
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from helpers import RankError, read_logs, run_ranks, torchrun_job
from helpers.course.build.source import sources
from helpers.course.kernel.processes import adopt_orphans
from helpers.exercises.base import Part
from helpers.exercises.checking import gather, judge, reference_answers, reference_evidence
from helpers.exercises.probing import on_ranks
from helpers.exercises.reference import failures

import psutil
import torch

SURVIVE = "failures"
LABS = {
    source.name: source.topic
    for source in sources()
    if source.topic
    in (
        *("data_parallel", "when_ranks_go_wrong", "sharding", "fully_shard", "tensor_parallel"),
        *("tensor_parallel_in_practice", "pipeline", "pipelines_in_practice"),
        *("context_parallel", "balance_and_documents", "expert_parallel", SURVIVE),
    )
}
SETTLED = 5.0  # seconds after which a process that still lives counts as left behind
STEPS = 16  # of a job of failures, which saves every 8


@dataclass
class Count:
    """What came of the runs.

    Attributes:
        starts: how often ranks were started.
        ranks: how many processes that were.
        false: verdicts that were wrong: a right answer refused, a broken job diagnosed as another one.
        failed: runs that ended in an error.
        left: processes that were still there after their run.
        seen: what was wrong, a line each.
    """

    lab: str
    runs: int = 0
    starts: int = 0
    ranks: int = 0
    false: int = 0
    failed: int = 0
    left: int = 0
    seconds: float = 0.0
    seen: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        return self.runs > 0 and not (self.false or self.failed or self.left)


class Falsity(Exception):
    """A verdict that was false; the message says which."""


Run = Callable[[int], None]  # does one run with a seed; raises `Falsity`, or whatever went wrong


@contextlib.contextmanager
def counted(count: Count) -> Iterator[Callable[..., Any]]:
    """Count the starts of ranks: those of checks, and those by the function that this gives."""

    def counting(work: Callable[..., Any], world_size: int, *args: Any, **options: Any) -> Any:
        count.starts, count.ranks = count.starts + 1, count.ranks + world_size
        return run_ranks(work, world_size, *args, **options)

    on_ranks.run_ranks = counting
    try:
        yield counting
    finally:
        on_ranks.run_ranks = run_ranks


def checks_on_ranks(topic: str) -> list[Run]:
    """Return a run for each check of the lab that starts ranks."""
    parts = importlib.import_module(f"helpers.exercises.{topic}").PARTS
    alone = [replace(part, checks=(check,)) for part in parts for check in part.checks]
    return [functools.partial(judged, part) for part in alone if starts_ranks(part)]


class _Started(BaseException):
    """Ranks would be started now."""


def starts_ranks(part: Part) -> bool:
    """Say whether the checks of `part` start ranks, without starting any."""

    def stop(*_: Any, **__: Any) -> None:
        raise _Started

    start, on_ranks.run_ranks = on_ranks.run_ranks, stop
    try:
        gather(part, reference_answers(part), seed=0)
    except _Started:
        return True
    finally:
        on_ranks.run_ranks = start
    return False


def judged(part: Part, seed: int) -> None:
    """Probe the reference answers with the one check of `part`, and judge them as a learner's."""
    (verdict,) = judge(part, gather(part, reference_answers(part), seed), reference_evidence(part, seed))
    if not verdict.passed:
        raise Falsity(f"{part.name}, {verdict.check}, seed {seed}: {verdict.diagnosis}")


class Jobs:
    """Jobs of the lab on failures: its own program, with its reference answers."""

    def __init__(self, start: Callable[..., Any]) -> None:
        self._start = start
        (lab,) = (source for source in sources() if source.topic == SURVIVE)
        self._program: dict[str, Any] = {**vars(failures), "__name__": "__main__"}
        cells = {cell.metadata.get("name"): cell.source for cell in lab.cells()}
        for name in ("faults", "program"):
            exec(compile(cells[name], name, "exec"), self._program)
        with tempfile.TemporaryDirectory() as folder:
            self._undisturbed = self._losses(2, folder)

    def runs(self) -> list[Run]:
        """Return the ways to break a job, the quick ones more often than the slow ones."""
        return [self.killed, self.wrong, self.killed, self.hung, self.wrong, self.killed, self.restarted]

    def killed(self, seed: int) -> None:
        """A rank is killed at a step; then the job goes on, on one, two or three ranks."""
        self._broken_and_resumed("kill", "died", seed)

    def hung(self, seed: int) -> None:
        """A rank never comes to its all-reduce, and the group's timeout ends the job."""
        self._broken_and_resumed("hang", "raised", seed)

    def wrong(self, seed: int) -> None:
        """A bit of one rank's weights goes wrong, and the diagnosis says whose."""
        dice = random.Random(seed)
        rank, first = dice.randrange(3), dice.randrange(STEPS - 2)
        with tempfile.TemporaryDirectory() as folder:
            self._losses(3, folder, {(0, rank, step): "wrong weight" for step in range(first, STEPS)})
            found = failures.diagnose(read_logs(folder, dict.fromkeys(range(3), 0)))
        if found != ("wrong", rank):
            raise Falsity(f"rank {rank} was wrong from step {first} on; the diagnosis is {found}")

    def restarted(self, seed: int) -> None:
        """A rank is killed under `torchrun`, which starts all of them again."""
        dice = random.Random(seed)
        faults = {(0, dice.randrange(2), dice.randrange(STEPS)): "kill"}
        with tempfile.TemporaryDirectory() as folder:
            job = torchrun_job(self._program["survive"], 2, folder, faults, STEPS, restarts=1)
        with tempfile.TemporaryDirectory() as folder:
            untouched = torchrun_job(self._program["survive"], 2, folder, {}, STEPS)
        ends = [re.findall(r"weights (\w{8})", one.printed) for one in (job, untouched)]
        if job.code != 0 or not ends[0] or ends[0][-1] != ends[1][-1]:
            raise Falsity(f"torchrun, {faults}: exit code {job.code}, weights {ends}")

    def _broken_and_resumed(self, fault: str, said: str, seed: int) -> None:
        dice = random.Random(seed)
        rank, step, ranks = dice.randrange(2), dice.randrange(STEPS), dice.choice((1, 2, 3))
        with tempfile.TemporaryDirectory() as folder:
            try:
                self._losses(2, folder, {(0, rank, step): fault})
            except RankError as error:
                if f"rank {rank if fault == 'kill' else 1 - rank} {said}" not in str(error):
                    raise
            else:
                raise Falsity(f"{fault} of rank {rank} at step {step}: nobody noticed")
            after = self._losses(ranks, folder)
        right = self._undisturbed[STEPS - len(after) :]
        if len(after) not in (STEPS - step // 8 * 8, STEPS) or max(
            abs(a / b - 1) for a, b in zip(after, right, strict=True)
        ) > (0 if ranks == 2 else 1e-4):
            raise Falsity(f"{fault} at step {step}, resumed on {ranks} ranks: {after} in place of {right}")

    def _losses(self, ranks: int, folder: str, faults: dict | None = None) -> list[float]:
        options = {"device": "cpu", "process_group": False, "measure": False, "show": False}
        return self._start(self._program["survive"], ranks, folder, faults or {}, STEPS, **options).results[0]


def soak(turns: Sequence[Run], count: Count, runs: int, seed: int, seconds: float = 1e9) -> None:
    """Do so many runs, by turns, or as many as there is time for; note in `count` what came of them."""
    dice, begin = random.Random(seed), time.monotonic()
    for run in itertools.islice(itertools.cycle(turns), runs):
        if count.seconds > seconds:
            break
        there, known = _family(), len(count.seen)
        try:
            run(dice.randrange(2**31))
        except Falsity as error:
            count.false += 1
            count.seen.append(str(error))
        except Exception as error:
            count.failed += 1
            count.seen.append(f"{type(error).__name__}: {error}")
        left = processes_left(there)
        count.left, count.runs = count.left + len(left), count.runs + 1
        count.seconds = round(time.monotonic() - begin, 1)
        count.seen += left
        print(f"\r{count.runs} of {runs} runs, {count.starts} starts", end="", file=sys.stderr, flush=True)
        for line in count.seen[known:]:
            print(f"\n{line}", file=sys.stderr)


def processes_left(spared: Collection[psutil.Process]) -> list[str]:
    """End the descendants of this process that do not end by themselves, but for those `spared`; return a line each."""
    deadline = time.monotonic() + SETTLED
    while (family := [one for one in _family() if one not in spared]) and time.monotonic() < deadline:
        time.sleep(0.05)
    lines = []
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            lines.append(f"left behind: {process.pid} {' '.join(process.cmdline())[:100]}")
            process.kill()
    return lines


def _family() -> list[psutil.Process]:
    """Return the descendants that live, without multiprocessing's own two helpers."""
    alive, here = [], psutil.Process()
    for process in here.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            own = process.ppid() == here.pid and re.search(r"forkserver|resource_tracker", " ".join(process.cmdline()))
            if not own and process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process)
    return alive


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__.partition(":")[0])
    parser.add_argument("lab", choices=LABS)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop then, and say how many runs there were")
    args = parser.parse_args()
    torch.set_num_threads(1)
    adopt_orphans()
    count, topic = Count(args.lab), LABS[args.lab]
    with counted(count) as start:
        turns = Jobs(start).runs() if topic == SURVIVE else checks_on_ranks(topic)
        count.starts = count.ranks = 0
        with contextlib.suppress(KeyboardInterrupt):  # the count so far is of use, too
            soak(turns, count, args.runs, args.seed, args.seconds)
    print(json.dumps(asdict(count)))
    sys.exit(not count.right)


if __name__ == "__main__":
    main()
