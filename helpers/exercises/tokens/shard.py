"""Check of the shares of an epoch's blocks that ranks and their workers read.

One observation serves all checks: the shares of every worker of every rank, in epochs of several sizes.
"""

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..base import Check, Evidence

Share = Callable[..., list[int]]  # (blocks, seed, epoch, rank, ranks, worker, workers)
SIZES = ((24, 1, 1), (24, 2, 3), (23, 3, 2), (17, 4, 1), (29, 2, 4), (7, 8, 2), (5, 2, 4))  # blocks, ranks, workers
BLOCKS = 30  # of the epochs whose orders are compared
EPOCHS, SEEDS = 40, 40


def _case(blocks: int, ranks: int, workers: int) -> str:
    words = [f"{n} {word}{'s' * (n != 1)}" for n, word in ((ranks, "rank"), (workers, "worker"))]
    return f"{blocks} blocks, {words[0]} of {words[1]}"


def _listed(share: Any) -> list[int]:
    return [int(block) for block in share]


def _shares(seed: int, share: Share) -> Evidence:
    """Ask for all shares of some epochs: by case, for each rank those of its workers, and its share for one worker."""
    cases = {}
    for blocks, ranks, workers in SIZES:
        cases[_case(blocks, ranks, workers)] = {
            "blocks": blocks,
            "shares": [
                [_listed(share(blocks, seed, 1, r, ranks, w, workers)) for w in range(workers)] for r in range(ranks)
            ],
            "alone": [_listed(share(blocks, seed, 1, r, ranks, 0, 1)) for r in range(ranks)],
        }
    return {"cases": cases} | _orders(seed, share)


def _orders(seed: int, share: Share) -> Evidence:
    """Return orders of one rank with one worker, by seed and epoch, and what the global generators draw afterwards."""

    def order(seed: int, epoch: int) -> list[int]:
        return _listed(share(BLOCKS, seed, epoch, 0, 1, 0, 1))

    again, drawn = [], []
    for number in (0, 1):  # the program's own random numbers may be anywhere
        torch.manual_seed(number)
        np.random.seed(number)
        random.seed(number)
        again.append(order(seed, 0))
        drawn.append([torch.rand(()).item(), np.random.random(), random.random()])
    pairs = [(0, epoch) for epoch in range(EPOCHS)] + [(later, epoch) for later in range(1, SEEDS) for epoch in (0, 1)]
    seen: dict[tuple[int, ...], tuple[int, int]] = {}
    twice = []
    for pair in pairs:
        first = seen.setdefault(tuple(order(seed + pair[0], pair[1])), pair)
        if first != pair:
            twice.append([*first, *pair])
    return {"again": again, "drawn": drawn, "twice": twice[:1]}


class EachBlockOnce(Check):
    """No block is read twice in an epoch, by any of the workers, and fewer blocks than ranks are left out."""

    hint = (
        "All workers of all ranks need the same order of all blocks. Each then takes its own part of it.\n"
        "order[rank::ranks] leaves nothing out; the blocks beyond the last full step come off the end first."
    )
    probe = staticmethod(_shares)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, got in seen["cases"].items():
            read = [block for of_rank in got["shares"] for share in of_rank for block in share]
            if not set(read) <= set(range(got["blocks"])):
                return f"{case}: block {max(read, key=lambda b: abs(b - got['blocks'] / 2))} does not exist."
            twice = sorted({block for block in read if read.count(block) > 1})
            if twice:
                return (
                    f"{case}: {len(twice)} of {got['blocks']} blocks are read more than once, such as {twice[0]}. Does "
                    "each worker take its own part of the same order?"
                )
            lost, due = (got["blocks"] - count for count in (len(read), len(_all(expected, case))))
            if lost > due:
                return (
                    f"{case}: {lost} blocks are left out; {due} are the remainder of {got['blocks']} / ranks. Do all "
                    "parts together cover the order?"
                )
        return None


def _all(seen: Evidence, case: str) -> list[int]:
    return [block for of_rank in seen["cases"][case]["shares"] for share in of_rank for block in share]


class RanksHaveEqualShares(Check):
    """Every rank has `blocks // ranks` blocks in an epoch, those of its workers together."""

    hint = "blocks // ranks steps for every rank: cut the order off after ranks * steps blocks, then deal."
    probe = staticmethod(_shares)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected["cases"].items():
            due = sum(map(len, want["shares"][0]))
            for name, what in (("shares", "its workers' shares together"), ("alone", "with one worker")):
                counts = [sum(map(len, mine)) if name == "shares" else len(mine) for mine in seen["cases"][case][name]]
                if len(set(counts)) > 1:
                    return f"{case}: the ranks have {counts} blocks, {what}. The rank with the most would hang."
                if counts[0] != due:
                    return f"{case}: every rank has {counts[0]} blocks, {what}; expected {due}."
        return None


class WorkersTakeTurns(Check):
    """The loop takes one block from each worker in turn, and gets a rank's blocks in the order of a single worker."""

    hint = "The rank's blocks first, in order; then every workers-th of them, from number `worker` on."
    probe = staticmethod(_shares)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, got in seen["cases"].items():
            for rank, (shares, alone) in enumerate(zip(got["shares"], got["alone"], strict=True)):
                turns = itertools.chain.from_iterable(itertools.zip_longest(*shares))
                received = [block for block in turns if block is not None]
                if received != alone:
                    k = next((k for k, (a, b) in enumerate(zip(received, alone, strict=False)) if a != b), len(alone))
                    what = f"block {received[k]}" if k < len(received) else "nothing"
                    wanted = f"block {alone[k]}" if k < len(alone) else "nothing"
                    return (
                        f"{case}: in step {k} the loop of rank {rank} receives {what}; with one worker it receives "
                        f"{wanted}. Workers deliver in turn: 0, 1, ..., 0, 1, ..."
                    )
        return None


class OneOrderForAll(Check):
    """The order follows from `seed` and `epoch` alone: different for each, and the same in every process."""

    hint = (
        "A generator of your own: np.random.default_rng([seed, epoch]).\n"
        "seed + epoch would give seed 1 in epoch 0 the order of seed 0 in epoch 1."
    )
    probe = staticmethod(_shares)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        first, again = seen["again"]
        if first != again:
            return "Two calls with the same arguments differ: another source of random numbers is used."
        if first == sorted(first):
            return "The blocks come in the order of the file: nothing is shuffled. Draw a permutation."
        if seen["twice"]:
            seed, epoch, later, there = seen["twice"][0]
            if later:
                other = f"seed s + {seed}" if seed else "seed s"
                return f"In epoch {there}, seed s + {later} gives the same order as {other} in epoch {epoch}."
            return f"Epoch {there} has the order of epoch {epoch}."
        for name, *draws in zip(("torch", "NumPy", "random"), *seen["drawn"], strict=True):
            if draws[0] == draws[1]:
                return f"`share` seeds the global generator of {name}: its numbers would repeat in each epoch."
        return None


SHARD = (EachBlockOnce, RanksHaveEqualShares, WorkersTakeTurns, OneOrderForAll)
