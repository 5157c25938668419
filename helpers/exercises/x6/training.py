"""X6, part 3: the training loop. Three checks of a point each, with the course's own `save`, `load` and `gradient`."""

import random
from collections.abc import Callable
from typing import Any

from ..base import Check, Evidence
from ..probing.distance import relative_distance
from .chains import Answers, Start, run_chain, whole_run, wrong_in_chain
from .job import Kill

Answer = Callable[..., Any]
EXACT = 1e-9  # relative: another order of summation is not another result


class UninterruptedRunIsRight(Check):
    """Nobody kills it: two ranks train as the contract says, and end with the same weights."""

    points = 1
    hint = (
        "Each rank has a lane, with its stream and its random state, first that of manual_seed(job.seed + lane).\n"
        "A step: job.gradient(model, streams, random, job.micro_batches), optimizer.step(), schedule.step()."
    )

    @staticmethod
    def probe(seed: int, train: Answer) -> Evidence:
        return whole_run(Answers(train), seed)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for rank, (got, right) in enumerate(zip(seen["last"], expected["last"], strict=True)):
            if not got["own"]:
                return f"rank {rank} did not return the model that job.make_model() made."
            if len(got["updates"]) != len(right["updates"]):
                return f"rank {rank} made {len(got['updates'])} updates; {len(right['updates'])} are right."
            for step, (mine, want) in enumerate(zip(got["updates"], right["updates"], strict=True), 1):
                wrong = _wrong_update(mine, want)
                if wrong:
                    return f"rank {rank}, step {step}: {wrong}"
            if got["weights"] != seen["last"][0]["weights"]:
                return f"the final weights of ranks 0 and {rank} differ."
        if not relative_distance(seen["last"][0]["weights"], expected["last"][0]["weights"]) <= EXACT:
            return "the ranks agree, on other weights than the contract's gradient gives."
        return None


def _wrong_update(mine: Evidence, want: Evidence) -> str | None:
    if any(forward["rows"] != 4 for lane in mine["lanes"].values() for forward in lane):
        return "the model saw something else than one micro-batch of 4 rows."
    if {k: [f["x"] for f in v] for k, v in mine["lanes"].items()} != {
        k: [f["x"] for f in v] for k, v in want["lanes"].items()
    }:
        return "the model saw other rows than the next micro-batches of this rank's lane."
    for lane, forwards in want["lanes"].items():
        if mine["lanes"][lane][0]["random"] != forwards[0]["random"]:
            return f"lane {lane} is in another random state than torch.manual_seed(job.seed + {lane}) leads to."
    if mine["lr"] != want["lr"]:
        return f"the learning rate is {mine['lr']:.4g}; {want['lr']:.4g} is right."
    return None


def _chains(answers: Answers, seed: int, chains: dict[str, tuple[Start, ...]]) -> Evidence:
    whole = whole_run(answers, seed)
    return {"whole": whole, "chains": {name: run_chain(answers, seed, starts) for name, starts in chains.items()}}


def _judged(seen: Evidence, expected: Evidence) -> str | None:
    for name, right in expected["chains"].items():
        wrong = wrong_in_chain(seen["chains"][name], right, seen["whole"])
        if wrong:
            return f"{name}: {wrong}"
    return None


class GoesOnToTheLastBit(Check):
    """Killed between steps, in a step or at its start, on one rank or two, it ends with the bits of a whole run."""

    points = 1
    hint = (
        "What decides the next step? Weights, optimizer, schedule, and of each lane the stream and the random state.\n"
        "Take the random state when the lane has done its micro-batches, and set it again before the next ones.\n"
        "A rank alone has both lanes, and saves and restores what belongs to each."
    )

    @staticmethod
    def probe(seed: int, train: Answer) -> Evidence:
        dice = random.Random(seed)
        between = Start(2, Kill(0, "updated", dice.choice((4, 5))))
        alone = Start(1, Kill(0, "updated", 4))
        return _chains(
            Answers(train),
            seed,
            {
                "killed between two steps": (between, Start(2)),
                "killed at its start twice in a row, then in a step": (
                    between,
                    Start(2, Kill(1, "stream")),
                    Start(2, Kill(0, dice.choice(("load", "loaded")))),
                    Start(2, Kill(1, "forward", dice.randrange(7, 10))),
                    Start(2),
                ),
                "killed before a save": (Start(2, Kill(0, "save", 2)), Start(2)),
                "killed after the last save": (Start(2, Kill(0, "saved", 3)), Start(2)),
                "one rank, never killed": (Start(1),),
                "two ranks are killed, one goes on": (Start(2, Kill(1, "updated", 4)), Start(1)),
                "one rank is killed, two go on": (alone, Start(2)),
            },
        )

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _judged(seen, expected)


class Rank0KeepsTheStateOfAll(Check):
    """Rank 0's disk alone is used: it saves after the right steps, reads for all, and no rank leaves before that."""

    points = 1
    hint = (
        "dist.all_gather_object brings the lanes' states to rank 0; dist.broadcast_object_list sends what it loaded.\n"
        "After the last save a barrier, so that no rank returns before the checkpoint is there."
    )

    @staticmethod
    def probe(seed: int, train: Answer) -> Evidence:
        answers = Answers(train)
        return {
            "whole": whole_run(answers, seed, slow=0.2),
            "again": run_chain(answers, seed, (Start(2, Kill(0, "updated", 5)), Start(2))),
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case in ("whole", "again"):
            want = expected[case]["last"]
            for rank, (got, right) in enumerate(zip(seen[case]["last"] or [], want, strict=True)):
                if got["saves"] != right["saves"]:
                    return f"rank {rank} called job.save for the steps {got['saves']}; {right['saves']} is right."
                if got["loads"] != right["loads"]:
                    return f"rank {rank} called job.load {got['loads']} times; {right['loads']} is right."
                if not got["last"]:
                    return f"rank {rank} returned before the last checkpoint was published."
            for start, right in zip(seen[case]["starts"], expected[case]["starts"], strict=True):
                if start["elsewhere"]:
                    return "something was written into the folder of rank 1, which nobody reads again."
                if start["entries"] != right["entries"]:
                    return f"{start['entries']} checkpoints are left; with job.keep there should be {right['entries']}."
        first, second = seen["again"]["last"]
        if first["weights"] != second["weights"]:
            return "after a restart the ranks' weights differ: rank 1's folder may hold another run's checkpoints."
        return None


TRAINING = (UninterruptedRunIsRight, GoesOnToTheLastBit, Rank0KeepsTheStateOfAll)
