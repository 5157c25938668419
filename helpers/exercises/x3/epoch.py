"""Checks of part 1: an epoch on several ranks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from ...core.device import rank_device
from ...ranks.collectives import Collectives
from ..base import Check, Evidence
from ..probing.distance import relative_distance
from ..probing.on_ranks import on_ranks
from .material import EXACT, Net, Rows, as_measured, near, weights

SLACK = 512  # bytes an update that may be sent beside the gradients: counts and losses


@dataclass(frozen=True)
class _Training:
    """What the ranks train on: so many rows, in groups of `accumulate` micro-batches of 4."""

    rows: int
    accumulate: int
    epochs: int = 1
    lr: float = 0.2


def _epochs(train_epoch: Callable[..., Any], seed: int, training: _Training) -> Evidence:
    """One rank: the epochs of `training` with the learner's `train_epoch`."""
    torch.manual_seed(seed)
    inner = Net().to(rank_device())
    model = DistributedDataParallel(inner)
    trained = [p for p in inner.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=training.lr, weight_decay=0.1)  # decay tells a gradient from a rate
    updates = []
    optimizer.register_step_post_hook(lambda *_: updates.append(None))
    at_once: list[int] = []
    inner.register_forward_pre_hook(lambda _, args: at_once.append(len(args[0])))
    rows = Rows(seed, training.rows)
    loader = DataLoader(rows, batch_size=4, sampler=DistributedSampler(rows, shuffle=True, seed=seed))
    before = weights(inner)
    for p in inner.parameters():  # left behind by an earlier step
        p.grad = torch.full_like(p, 7.0) if p.requires_grad else None
    orders, losses = [], []
    with Collectives() as collectives:
        for epoch in range(training.epochs):
            rows.asked.clear()
            losses.append(as_measured(train_epoch(model, loader, optimizer, training.accumulate, epoch)))
            orders.append(rows.asked[:])
    after = weights(inner)
    return {
        "moved": [b - a for a, b in zip(before, after, strict=True)],
        "weights": after,
        "updates": len(updates),
        "at once": max(at_once, default=0),
        "orders": orders,
        "losses": losses,
        "reduced": sum(call.nbytes for call in collectives.calls if call.name == "all_reduce"),
        "gradients": sum(p.nbytes for p in inner.parameters() if p.requires_grad),
    }


def _wrong_training(seen: list[Evidence], expected: list[Evidence]) -> str | None:
    """Say how the replicas of `seen` differ from each other and from those of `expected`."""
    for rank, other in enumerate(seen):
        if other["at once"] > 4:
            return f"the model of rank {rank} was called with {other['at once']} rows; a micro-batch has 4."
        if other["updates"] != expected[0]["updates"]:
            return f"rank {rank} stepped {other['updates']} times; {expected[0]['updates']} updates are right."
        if other["weights"] != seen[0]["weights"]:
            return f"the weights of ranks 0 and {rank} differ: their gradients were not averaged, or not alike."
    got, want = seen[0]["moved"], expected[0]["moved"]
    off = relative_distance(got, want)
    if not off <= EXACT:
        a, b = torch.tensor(got).norm().item(), torch.tensor(want).norm().item()
        return f"the weights moved {a / b:.4g} times as far as on the joint batch, and {off:.2g} (relative) beside it."
    return None


class UpdateEqualsJointBatch(Check):
    """After an epoch the replicas are bit-identical, and what one process on the joint batch would be."""

    points = 1
    hint = (
        "DDP averages over ranks what backward() leaves on each. Weigh so that every row of a group counts 1 / rows of "
        "the group; clear old gradients; divide once."
    )

    @staticmethod
    def probe(seed: int, train_epoch: Callable[..., Any]) -> Evidence:
        return {
            f"{ranks} ranks, groups of {accumulate}": on_ranks(
                _epochs, ranks, train_epoch, seed, _Training(24 * ranks, accumulate)
            )
            for ranks, accumulate in ((2, 1), (2, 3), (3, 2))
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            wrong = _wrong_training(seen[case], want)
            if wrong:
                return f"{case}: {wrong}"
        return None


class RaggedGroupsWeighByRows(Check):
    """When the last micro-batch or the last group is smaller, every row of a group still weighs the same."""

    points = 1
    hint = "The last group of an epoch has fewer micro-batches, and the last micro-batch fewer rows: count the rows."

    @staticmethod
    def probe(seed: int, train_epoch: Callable[..., Any]) -> Evidence:
        cases = {"a last micro-batch of 1 row": (26, 2), "a last group of 1 micro-batch": (32, 3), "both": (42, 4)}
        return {case: on_ranks(_epochs, 2, train_epoch, seed, _Training(n, k)) for case, (n, k) in cases.items()}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return UpdateEqualsJointBatch.judge(seen, expected)


class OneSynchronisationAnUpdate(Check):
    """Gradients travel once an update, whatever the number of micro-batches."""

    points = 1
    hint = "`with model.no_sync():` around forward and backward of all micro-batches of a group but the last."

    @staticmethod
    def probe(seed: int, train_epoch: Callable[..., Any]) -> Evidence:
        return {str(k): on_ranks(_epochs, 2, train_epoch, seed, _Training(48, k)) for k in (1, 3, 4)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for k, want in expected.items():
            for rank, (got, right) in enumerate(zip(seen[k], want, strict=True)):
                times = got["reduced"] / right["gradients"] / right["updates"]
                if got["reduced"] > right["updates"] * (right["gradients"] + SLACK):
                    return (
                        f"groups of {k}: rank {rank} all-reduced {times:.1f} times the gradients an update; 1 is right."
                    )
                if got["reduced"] < right["updates"] * right["gradients"]:
                    return f"groups of {k}: rank {rank} all-reduced only {times:.1f} times the gradients an update."
        return None


class EveryEpochInANewOrder(Check):
    """Each epoch goes through the rows in a new order, and the ranks' parts fit together."""

    points = 1
    hint = "The sampler shuffles with seed + epoch, and only you can tell it the epoch: set_epoch."

    @staticmethod
    def probe(seed: int, train_epoch: Callable[..., Any]) -> Evidence:
        return {
            "ranks": [rank["orders"] for rank in on_ranks(_epochs, 2, train_epoch, seed, _Training(24, 1, epochs=3))]
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for rank, (got, want) in enumerate(zip(seen["ranks"], expected["ranks"], strict=True)):
            if got == want:
                continue
            if len(got) > 1 and all(order == got[0] for order in got):
                return f"rank {rank} saw its rows in one and the same order in {len(got)} epochs."
            lengths = [len(order) for order in got]
            if lengths != [len(order) for order in want]:
                return f"rank {rank} asked for {lengths} rows in {len(got)} epochs; its part has {len(want[0])}."
            return f"rank {rank} did not see the rows that the sampler gives it for epochs 0, 1 and 2."
        return None


class LossIsOfAllRanks(Check):
    """The loss that comes back is the mean over the rows of all ranks, the same float on each."""

    points = 1
    hint = "Sum losses and rows on each rank, all_reduce both sums, and divide once, at the end."

    @staticmethod
    def probe(seed: int, train_epoch: Callable[..., Any]) -> Evidence:
        # a learning rate of 0: the mean is the same whatever was wrong with order or updates
        cases = {
            "even": _Training(32, 1, epochs=2, lr=0.0),
            "ragged": _Training(42, 4, epochs=2, lr=0.0),
            "while learning": _Training(48, 2, lr=0.5),
        }
        return {
            case: [
                {"losses": rank["losses"], "moved": rank["moved"]}
                for rank in on_ranks(_epochs, 2, train_epoch, seed, training)
            ]
            for case, training in cases.items()
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            learning = any(want[0]["moved"])
            for rank, (got, right) in enumerate(zip(seen[case], want, strict=True)):
                if learning and not relative_distance(got["moved"], right["moved"]) <= EXACT:
                    break  # other updates have other losses: the first two checks say what is wrong
                for epoch, (a, b) in enumerate(zip(got["losses"], right["losses"], strict=True)):
                    if not isinstance(a, float):
                        return f"{case}: rank {rank} returned {a}; a Python float is asked for."
                    if not near(a, b):
                        if learning:
                            return (
                                f"{case}: rank {rank} returned {a:.6g}; the mean over all ranks is {b:.6g}. "
                                "Is each loss that of the moment at which its rows were seen?"
                            )
                        return (
                            f"{case}, epoch {epoch}: rank {rank} returned {a:.6g}; the mean over all ranks is {b:.6g}."
                        )
        return None


EPOCH = (
    UpdateEqualsJointBatch,
    RaggedGroupsWeighByRows,
    OneSynchronisationAnUpdate,
    EveryEpochInANewOrder,
    LossIsOfAllRanks,
)
