"""X6, part 3: the training loop. Two checks of a point each, with the course's own `save`, `load` and `gradient`.

All of them judge the same runs: two that nobody kills, with different settings, and chains of starts that are killed.
"""

import random
from collections.abc import Callable
from typing import Any

from ..base import Check, Evidence
from ..probing.distance import relative_distance
from .chains import Answers, Chain, Start, failed, run_chains, wrong_in_chain
from .job import Kill

Answer = Callable[..., Any]
EXACT = 1e-9  # relative: another order of summation is not another result
USUAL = {"slow": 0.2}  # saves that take their time show what does not wait for them
OTHER = {"steps": 6, "every": 2, "keep": 3, "micro_batches": 3}
WHOLE, OTHER_WHOLE = "never killed", "never killed, with other settings"
BETWEEN, FINISHED = "killed between two steps", "killed after the last save"
ALONE = "one rank, never killed"
BASES = {ALONE: OTHER_WHOLE}  # with which uninterrupted run a chain is compared, if not WHOLE


def _chains(seed: int) -> dict[str, Chain]:
    dice = random.Random(seed)
    between = Start(2, Kill(0, "updated", dice.choice((4, 5))))
    alone = Start(1, Kill(0, "updated", 4))
    return {
        WHOLE: Chain((Start(2),), USUAL),
        OTHER_WHOLE: Chain((Start(2),), OTHER),
        BETWEEN: Chain((between, Start(2)), beside=True),
        "killed before a save, at its start twice in a row, then in a step": Chain(
            (
                Start(2, Kill(0, "save", 2)),
                Start(2, Kill(1, "stream")),
                Start(2, Kill(0, dice.choice(("load", "loaded")))),
                Start(2, Kill(0, "forward", dice.randrange(7, 10))),
                Start(2),
            )
        ),
        FINISHED: Chain((Start(2, Kill(0, "saved", 3)), Start(2))),
        ALONE: Chain((Start(1),), OTHER, beside=True),
        "two ranks are killed, one goes on": Chain((Start(2, Kill(1, "updated", 4)), Start(1))),
        "one rank is killed, two go on": Chain((alone, Start(2))),
    }


class OneObservation(Check):
    """Looks at what the same runs have shown."""

    points = 1

    @staticmethod
    def probe(seed: int, train: Answer) -> Evidence:
        return run_chains(Answers(train), seed, _chains(seed))


class UninterruptedRunIsRight(OneObservation):
    """Two ranks train as the contract says, and only rank 0 saves and loads, after the right steps."""

    hint = (
        "Each rank has a lane, with its stream and its random state, first that of manual_seed(job.seed + lane).\n"
        "A step: job.gradient(model, streams, random, job.micro_batches), optimizer.step(), schedule.step().\n"
        "dist.all_gather_object brings the lanes' states to rank 0; dist.broadcast_object_list sends what it loaded.\n"
        "After the last save call a barrier, so that no rank returns before the checkpoint is there."
    )

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name in (WHOLE, OTHER_WHOLE):
            wrong = failed(seen, name) or _wrong_run(seen[name]["last"], expected[name]["last"])
            if wrong:
                return wrong
        return _wrong_checkpoints(seen, expected)


def _wrong_run(seen: list[Evidence], expected: list[Evidence]) -> str | None:
    for rank, (got, right) in enumerate(zip(seen, expected, strict=True)):
        if not got["own"]:
            return f"rank {rank} did not return the model that job.make_model() made."
        if len(got["updates"]) != len(right["updates"]):
            return f"rank {rank} made {len(got['updates'])} updates; expected {len(right['updates'])}."
        for step, (mine, want) in enumerate(zip(got["updates"], right["updates"], strict=True), 1):
            wrong = _wrong_update(mine, want)
            if wrong:
                return f"rank {rank}, step {step}: {wrong}"
        if not _close(got["lr"], right["lr"]):
            return f"rank {rank}, at the end: the learning rate is {got['lr']:.4g}; it should be {right['lr']:.4g}."
        if got["weights"] != seen[0]["weights"]:
            return f"the final weights of ranks 0 and {rank} differ."
    if not relative_distance(seen[0]["weights"], expected[0]["weights"]) <= EXACT:
        return "the ranks agree, but their weights differ from those that the contract's gradient gives."
    return None


def _wrong_update(mine: Evidence, want: Evidence) -> str | None:
    if mine["gradients"] != want["gradients"]:
        what = f"with {mine['gradients'][0]} micro-batches" if mine["gradients"] else "not at all"
        times = f", {len(mine['gradients'])} times" if len(mine["gradients"]) > 1 else ""
        return f"job.gradient was called {what}{times}; expected once, with {want['gradients'][0]}."
    if any(forward["rows"] != 4 for lane in mine["lanes"].values() for forward in lane):
        return "the model saw something other than one micro-batch of 4 rows."
    if {k: [f["x"] for f in v] for k, v in mine["lanes"].items()} != {
        k: [f["x"] for f in v] for k, v in want["lanes"].items()
    }:
        return "the model did not see the rows of the next micro-batches of this rank's lane."
    for lane, forwards in want["lanes"].items():
        if mine["lanes"][lane][0]["random"] != forwards[0]["random"]:
            return f"lane {lane} is not in the random state that torch.manual_seed(job.seed + {lane}) leads to."
    if not _close(mine["lr"], want["lr"]):
        return f"the learning rate is {mine['lr']:.4g}; it should be {want['lr']:.4g}."
    return None


def _close(rate: float, right: float) -> bool:
    """Say whether a learning rate is right, to a few bits."""
    return abs(rate - right) <= EXACT * right


class ResumesBitForBit(OneObservation):
    """Killed between steps, in a step or at startup, on one rank or two, it ends with an uninterrupted run's bits."""

    hint = (
        "What decides the next step? Weights, optimizer, schedule, and of each lane the stream and the random state.\n"
        "Take the random state when the lane has done its micro-batches, and set it again before the next ones.\n"
        "A single rank has both lanes, and saves and restores what belongs to each."
    )

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name in [name for name in expected if name not in (WHOLE, OTHER_WHOLE)]:
            base = BASES.get(name, WHOLE)
            wrong = failed(seen, base, name)
            if wrong:
                return wrong
            wrong = _not_saved(seen[name], expected[name]) or _lost(seen[name])
            wrong = wrong or wrong_in_chain(seen[name], expected[name], seen[base])
            if wrong:
                return f"{name}: {wrong}"
        return None


def _not_saved(seen: Evidence, expected: Evidence) -> str | None:
    """Say after which start the disk does not hold what had been done by then."""
    for number, (start, right) in enumerate(zip(seen["starts"], expected["starts"], strict=True), 1):
        if start["killed"] and right["killed"] and start["newest"] < right["newest"]:
            return (
                f"after start {number}, {_step(start['newest'])} is the newest on the disk. When it was killed, "
                f"{_step(right['newest'])} should have been saved, and only job.save deletes it."
            )
    return None


def _lost(seen: Evidence) -> str | None:
    """Say what `train` has deleted of that which was in rank 0's folder before the first start."""
    for number, start in enumerate(seen["starts"], 1):
        if start["lost"]:
            return (
                f"{start['lost'][0]} was in rank 0's folder before start 1 and is not there after start {number}. If "
                "job.load returns None, there is nothing to continue from; the folder may still hold something. Only "
                "job.save may delete there."
            )
    return None


def _step(number: int) -> str:
    return f"step {number}" if number else "none"


def _wrong_checkpoints(seen: Evidence, expected: Evidence) -> str | None:
    """Say what rank 0 does not save or load as it should, or what another rank does."""
    for name in (WHOLE, OTHER_WHOLE, BETWEEN, FINISHED, ALONE):
        wrong = failed(seen, name)
        if wrong:
            return wrong
        if not seen[name]["last"]:
            return f"{name}: the last start was killed."
        for rank, (got, right) in enumerate(zip(seen[name]["last"], expected[name]["last"], strict=True)):
            wrong = _wrong_saves(got["saves"], right["saves"], resumed=name in (BETWEEN, FINISHED))
            if wrong:
                return f"{name}: rank {rank} {wrong}"
            if got["unfit"]:
                what = {1: "a key", 2: "a nested key", 3: "a value"}.get(got["unfit"], "something")
                return (
                    f"{name}: the state in a call of job.save has {what} that your own save need not store. Look at "
                    "what part 1, clause 1, says of keys and values."
                )
            if got["overtaken"]:
                return f"{name}: rank {rank} went on with the next step before job.save had returned."
            if got["loads"] != right["loads"]:
                calls = f"{len(got['loads'])} times" if all(got["loads"]) else "with a folder other than job.folder"
                return f"{name}: rank {rank} called job.load {calls}; expected: {len(right['loads'])}."
            if got["made"]:
                return f"{name}: rank {rank} made its folder. Only job.save writes, and it makes what it needs."
            if not got["last"]:
                return f"{name}: rank {rank} returned before the last checkpoint was published."
        for start, right in zip(seen[name]["starts"], expected[name]["starts"], strict=True):
            if start["elsewhere"]:
                return "rank 1 wrote into its folder. Only rank 0 saves."
            if start["others"]:
                return f"{start['others'][0]} is in rank 0's folder, where only job.save may write."
            if start["entries"] != right["entries"]:
                return f"{start['entries']} checkpoints are left; with job.keep there should be {right['entries']}."
    first, second = seen[BETWEEN]["last"]
    if first["weights"] != second["weights"]:
        return (
            "after a restart the ranks' weights differ. Each rank needs all of the state that rank 0 has loaded; rank "
            "1's own folder may hold another run's checkpoints."
        )
    return None


def _wrong_saves(seen: list[list[Any]], expected: list[list[Any]], resumed: bool) -> str | None:
    """Say how calls of `job.save` are wrong; the rate of a resumed run is the other check's."""
    if [step for step, *_ in seen] != [step for step, *_ in expected]:
        return f"called job.save for the steps {[s for s, *_ in seen]}; expected {[s for s, *_ in expected]}."
    for (step, updates, lr, keep, own), (_, right, right_lr, right_keep, _) in zip(seen, expected, strict=True):
        if updates != right:
            return f"called job.save for step {step} after {updates} updates since its start; expected {right}."
        if not (resumed or _close(lr, right_lr)):
            return f"called job.save for step {step} before the schedule's step: the learning rate is {lr:.4g}."
        if keep != right_keep:
            return f"called job.save with keep={keep}; job.keep is {right_keep}."
        if not own:
            return "called job.save with a folder other than job.folder."
    return None


TRAINING = (UninterruptedRunIsRight, ResumesBitForBit)
