"""The simulated fleet, and real ranks to which the same failures happen: the same events, in the same order.

Ranks over gloo train with steps made of sleep. One dies, one hangs, one is slow and one gets a wrong weight; each time
the job goes on from its last good checkpoint. What happened is read from the ranks' logs alone. The simulation gets the
same failures, in seconds. Its log has no ranks: a failure stops all of them. So which ranks waited is compared with
that, and everything else with the log: which kind comes when, how many steps are lost, and where the job goes on.
"""

import json
import math
import os
import re
import signal
import statistics
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from helpers.exercises.failures.fleet import Failure, Fleet
from helpers.exercises.failures.rank_log import RankLogWriter, checksum, read_logs
from helpers.exercises.reference.failures import diagnose
from helpers.exercises.reference.runs_that_survive import Checkpoints
from helpers.ranks.failure import RankError
from helpers.ranks.run import run_ranks

import pytest
import torch
import torch.distributed as dist

STEP, SLOW, PATIENCE = 0.1, 0.8, 6.0  # seconds: of a step, more for a slow one, and until a hang is noticed
STEPS, EVERY = 24, 4


class SmallFleet(Fleet):
    SAVE, RESTART, SLOWER = 0.02, 1.0, SLOW / (STEP + SLOW)


@dataclass(frozen=True)
class Planted:
    """What happens to a rank in step `at`, counted from 0; `found`: the steps done when a comparison finds it."""

    kind: str
    rank: int
    at: int
    found: int = 0


@dataclass(frozen=True)
class Event:
    """What became of it."""

    kind: str
    rank: int
    waiting: tuple[int, ...]  # the ranks that waited for it
    done: int  # steps when the job stopped
    lost: int = 0  # of these, the steps that are done again
    goes_on: int = 0  # after this step


def planted_on(ranks: int) -> list[Planted]:
    """Return what happens to a job of so many ranks, to each rank in turn."""
    return [
        Planted("killed", ranks - 1, 6),
        Planted("slow", 1, 5, found=8),
        Planted("hung", 0, 11),
        Planted("wrong", ranks // 2, 14, found=20),
        Planted("killed", 0, 13),
    ]


# -- real ranks -----------------------------------------------------------------------------------------------


def train(folder: str, attempt: int, plan: Planted | None) -> None:
    """Train from the newest checkpoint, to the end or to the failure that is planned for this attempt."""
    rank, manager = dist.get_rank(), Checkpoints(f"{folder}/checkpoints", keep=STEPS)
    impatient = dist.new_group(timeout=timedelta(seconds=PATIENCE))
    begin, state = manager.latest() or (0, {"weights": torch.zeros(4)})
    weights, writer = state["weights"], RankLogWriter(folder, rank, attempt)
    writer.note("begin", begin)
    mine = plan if plan and plan.rank == rank else Planted("healthy", rank, STEPS)
    for step in range(begin, plan.found if plan and plan.found else STEPS):
        time.sleep(STEP + (SLOW if mine.kind == "slow" and step >= mine.at else 0.0))
        if step == mine.at and mine.kind in ("killed", "hung"):
            wait_until_all_others_wait(folder, attempt, step - begin + 1)
            if mine.kind == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(1000)
        gradient = torch.full((4,), float(step))
        with writer.call("all_reduce"):
            dist.all_reduce(gradient, group=impatient if plan and (plan.kind, plan.at) == ("hung", step) else None)
        weights += gradient
        if mine.kind == "wrong" and step == mine.at:
            weights[0] += 1
        writer.note("checksum", checksum([weights]))
        if (step + 1) % EVERY == 0 and rank == 0:
            manager.save(step + 1, {"weights": weights})


def wait_until_all_others_wait(folder: str, attempt: int, calls: int) -> None:
    """Return when each other rank has called its all-reduce of this step."""
    others = [rank for rank in range(dist.get_world_size()) if rank != dist.get_rank()]
    paths = [Path(folder, f"attempt-{attempt}-rank-{rank}.jsonl") for rank in others]
    while any(path.read_text().count('"asked"') < calls for path in paths):
        time.sleep(0.01)


def attempt_on(ranks: int, folder: Path, attempt: int, plan: Planted | None) -> dict[int, int]:
    """Start the job, and return each rank's exit code."""
    try:
        run_ranks(train, ranks, str(folder), attempt, plan, device="cpu", measure=False, show=False)
    except RankError as error:
        if error.overdue:
            raise
        died = re.match(r"rank (\d+) died \(exit code -9\)", str(error))
        return dict.fromkeys(range(ranks), 1) | ({int(died[1]): -9} if died else {})
    return dict.fromkeys(range(ranks), 0)


def lines_of(folder: Path, attempt: int, rank: int) -> list[list]:
    """Return what a rank has written down: what, a name or a number, and when."""
    path = folder / f"attempt-{attempt}-rank-{rank}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def begin_of(folder: Path, attempt: int) -> int:
    """Return after which step an attempt has begun."""
    what, step, _ = lines_of(folder, attempt, 0)[0]
    assert what == "begin"
    return step


def real_events(ranks: int, folder: Path) -> tuple[list[Event], dict[str, float]]:
    """Run the job until it is through; return what happened, and the seconds that ranks waited, by kind."""
    events: list[Event] = []
    waited: dict[str, float] = {}
    for attempt, plan in enumerate([*planted_on(ranks), None]):
        codes, ended = attempt_on(ranks, folder, attempt, plan), time.time()
        logs, begin = read_logs(folder, codes, attempt), begin_of(folder, attempt)
        if events:
            events[-1] = replace(events[-1], lost=events[-1].done - begin, goes_on=begin)
        kind, rank = diagnose(logs)
        done = begin + min(len(log.checksums) for log in logs)
        if plan is None:
            assert (kind, done) == ("healthy", STEPS)
            break
        if kind in ("killed", "hung"):
            waiting = [other for other, log in enumerate(logs) if log.calls[-1].answered is None]
            waited[kind] = ended - min(when for other in waiting for *_, when in lines_of(folder, attempt, other)[-1:])
        else:
            spent = [[call.answered - call.asked for call in log.calls[plan.at - begin :]] for log in logs]
            waiting = [other for other, seconds in enumerate(spent) if statistics.median(seconds) > SLOW / 2]
            waited[kind] = max(map(sum, spent))
        if kind == "wrong":
            forget_checkpoints_after(begin + steps_that_agree([log.checksums for log in logs]), folder / "checkpoints")
        events.append(Event(kind, rank, tuple(waiting), done))
    return events, waited


def steps_that_agree(checksums: list[list[int]]) -> int:
    return next(number for number, step in enumerate(zip(*checksums, strict=True)) if len(set(step)) > 1)


def forget_checkpoints_after(step: int, folder: Path) -> None:
    for path in folder.glob("step-*"):
        if int(path.name.partition("-")[2]) > step:
            path.unlink()


# -- the simulation -------------------------------------------------------------------------------------------

KINDS = {"killed": "node", "hung": "hang", "slow": "straggler", "wrong": "corruption"}
NAMES = {kind: name for name, kind in KINDS.items()}


def simulated_events(ranks: int) -> tuple[list[Event], dict[str, float]]:
    """Give the same failures to the simulation; return its log in steps, and its seconds by use."""
    fleet = SmallFleet(gpus=ranks, interval=EVERY * STEP, timeout=PATIENCE, compare=math.inf)
    failures: list[Failure] = []
    events: list[Event] = []
    for plan in planted_on(ranks):
        done, goes_on = plan.found or plan.at, events[-1].goes_on if events else 0
        slower = (done - plan.at) * SLOW if plan.kind == "slow" else 0.0
        trained = (done - goes_on) * STEP + slower
        unseen = (done - plan.at) * STEP + slower
        failures.append(Failure(KINDS[plan.kind], trained * (fleet.interval + fleet.SAVE) / fleet.interval, unseen))
        used, log = fleet.run(1, failures=failures)
        _, kind, seconds = log[-1]
        lost = round(seconds / STEP)
        assert seconds == pytest.approx(lost * STEP, abs=1e-6)  # whole steps
        others = () if kind == "corruption" else tuple(rank for rank in range(ranks) if rank != plan.rank)
        events.append(Event(NAMES[kind], plan.rank, others, done, lost, done - lost))
    assert [NAMES[kind] for _, kind, _ in log] == [event.kind for event in events]
    return events, used


def test_the_simulation_loses_the_steps_since_the_last_good_checkpoint():
    events, used = simulated_events(2)
    assert [(event.kind, event.lost, event.goes_on) for event in events] == [
        ("killed", 2, 4),
        ("slow", 0, 8),
        ("hung", 3, 8),
        ("wrong", 8, 12),
        ("killed", 1, 12),
    ]
    assert used["done again"] == pytest.approx(14 * STEP)
    assert used["slowed"] == pytest.approx(3 * SLOW)
    assert used["waiting for a timeout"] == PATIENCE
    assert used["restarting"] == 5 * SmallFleet.RESTART


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_real_ranks_have_the_events_of_the_simulation(ranks, tmp_path):
    simulated, used = simulated_events(ranks)
    real, waited = real_events(ranks, tmp_path)
    assert real == simulated
    done = sum(len(read_logs(tmp_path, {0: 0}, attempt)[0].checksums) for attempt in range(len(real) + 1))
    assert done == STEPS + round(used["done again"] / STEP)  # all steps that were done: once, and those that were lost
    assert 0.7 < waited["slow"] / used["slowed"] < 3  # a busy machine makes sleep longer, not shorter
    assert 0.9 < waited["hung"] / used["waiting for a timeout"] < 4
