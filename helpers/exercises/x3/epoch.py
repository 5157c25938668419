"""Checks of part 1: an epoch on several ranks.

All five look at the same runs: one start of 2 ranks and one of 3, in which each rank goes through a table of cases.
"""

import hashlib
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from ...core.device import rank_device
from ...ranks.collectives import Collectives
from ..base import Check, Evidence
from ..probing.cases import case_name, cases_on_ranks
from ..probing.distance import relative_distance
from ..probing.two_devices import watch_devices
from .material import EXACT, Net, Rows, as_measured, near, weights

BATCH = 4  # rows of a micro-batch
SLACK = 512  # bytes an update that may be sent beside the gradients: counts and losses
HELD = 3  # graphs that names in an answer may still refer to, after their backward passes: the last group's
STEEP = 20.0  # weights of the last layer are multiplied by it where gradients are to be long: clipping would show


@dataclass(frozen=True)
class _Case:
    """What the ranks train on: so many rows, in groups of `accumulate` micro-batches of 4."""

    rows: int
    accumulate: int
    epochs: tuple[int, ...] = (0,)
    lr: float = 0.2
    left: bool = True  # gradients of an earlier step are there when the first epoch begins
    drop_last: bool = False
    steep: float = 1.0
    adam: bool = False


EVEN = {
    "groups of 1": _Case(48, 1, left=False),
    "groups of 3": _Case(48, 3, steep=STEEP),
    "2 full groups, AdamW": _Case(72, 3, adam=True),  # its update is not linear in the gradient
}
RAGGED = {
    "a last group of 2 micro-batches": _Case(48, 4),
    "no full group": _Case(16, 5),
    "a last micro-batch of 1 row": _Case(26, 2),
    "a last group of 2 micro-batches, one of 1 row": _Case(42, 4),
    "rows that do not divide by the ranks": _Case(41, 2),
    "a loader that drops the last rows": _Case(26, 2, drop_last=True),
    "a last group of 1 row": _Case(51, 2),
}
SEVERAL = {  # the only cases in which an answer that does not call set_epoch sees other rows
    "three epochs": _Case(48, 2, epochs=(1, 6, 0), lr=0.5),  # a resumed run leaves epochs out, and may go back to 0
    "two epochs at a learning rate of 0": _Case(32, 1, epochs=(0, 1), lr=0.0),
    "two epochs of ragged groups at a learning rate of 0": _Case(42, 4, epochs=(0, 1), lr=0.0),
}
ON_THREE = ("2 full groups, AdamW", "a last group of 1 row")
TABLE = EVEN | RAGGED | SEVERAL
CASES = {
    2: {name: case for name, case in TABLE.items() if name not in ON_THREE},
    3: {name: TABLE[name] for name in ON_THREE},
}


class _Saved:
    """A tensor that a graph keeps for its backward pass."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


class _Mark(torch.autograd.Function):
    """A node in the graph of a forward pass that does nothing. Its context lives as long as the graph does."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor) -> torch.Tensor:
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class _Watch:
    """What happens in the forward passes of a model: rows, modes, and what is left of earlier graphs."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.rows: list[int] = []
        self.modes: set[bool] = set()
        self.autocast = False
        self.kept = 0  # tensors of earlier graphs that are alive when the model is called, at most
        self.saved = 0  # by all passes together
        self.held = 0  # earlier graphs that something still refers to, at most
        self._marks: weakref.WeakSet[Any] = weakref.WeakSet()
        self._alive: weakref.WeakSet[_Saved] = weakref.WeakSet()
        self.saving = saved_tensors_hooks(self._save, lambda saved: saved.tensor)
        model.register_forward_pre_hook(self._note)
        model.head.register_forward_hook(self._mark)

    def _mark(self, head: torch.nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        if output.requires_grad:
            output = _Mark.apply(output)
            self._marks.add(output.grad_fn)
        return output

    def _save(self, tensor: torch.Tensor) -> _Saved:
        saved = _Saved(tensor)
        self._alive.add(saved)
        self.saved += 1
        return saved

    @property
    def graphs(self) -> int:
        """How many graphs of earlier passes were alive at once, at most."""
        return self.kept * len(self.rows) // max(1, self.saved)

    def _note(self, model: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        self.rows.append(len(args[0]))
        self.modes.add(model.training)
        self.autocast |= torch.is_autocast_enabled("cpu")
        self.kept = max(self.kept, len(self._alive))
        self.held = max(self.held, len(self._marks))


def _epochs(train_epoch: Callable[..., Any], seed: int, case: _Case) -> Evidence:
    """One rank: the epochs of `case` with the learner's `train_epoch`."""
    torch.manual_seed(seed)
    inner = Net().to(rank_device())
    with torch.no_grad():
        inner.head.weight *= case.steep
    model = DistributedDataParallel(inner)
    trained = [p for p in inner.parameters() if p.requires_grad]
    frozen = [p for p in inner.parameters() if not p.requires_grad]
    groups = [{"params": trained[::2]}, {"params": trained[1::2]}]
    optimizer: torch.optim.Optimizer
    if case.adam:
        optimizer = torch.optim.AdamW(groups, lr=case.lr / 10, eps=0.1)  # so large that lengths count, too
    else:
        optimizer = torch.optim.SGD(groups, lr=case.lr, weight_decay=0.1)  # decay tells a gradient from a rate
    updates = []
    optimizer.register_step_post_hook(lambda *_: updates.append(None))
    watch, met = _Watch(inner), watch_devices(inner)
    rows = Rows(seed, case.rows)
    sampler = DistributedSampler(rows, shuffle=True, seed=seed + 5)  # a seed of its own: not the default
    loader = DataLoader(rows, BATCH, sampler=sampler, drop_last=case.drop_last)
    before = weights(inner)
    for p in trained:
        p.grad = torch.full_like(p, 7.0) if case.left else None
    torch.manual_seed(seed + dist.get_rank())  # ranks need not draw the same numbers
    orders, losses = [], []
    with Collectives() as collectives, watch.saving:
        for epoch in case.epochs:
            rows.asked.clear()
            losses.append(as_measured(train_epoch(model, loader, optimizer, case.accumulate, epoch)))
            orders.append(rows.asked[:])
    after = weights(inner)
    return {
        "moved": [b - a for a, b in zip(before, after, strict=True)] if dist.get_rank() == 0 else [],  # all are alike
        "weights": hashlib.sha256(torch.tensor(after).numpy().tobytes()).hexdigest(),
        "thawed": any(p.requires_grad or p.grad is not None for p in frozen),
        "updates": len(updates),
        "at once": max(watch.rows, default=0),
        "rows": sum(watch.rows),
        "graphs": watch.graphs,
        "held": watch.held,
        "evaluation": False in watch.modes or not inner.training,
        "autocast": watch.autocast,
        "unmoved": sorted(set(met)),
        "orders": orders,
        "losses": losses,
        "sent": collectives.volume,
        "gradients": sum(p.nbytes for p in trained),
        "synchronizes": model.require_backward_grad_sync,
        "averages": _averages(model, seed),
    }


def _averages(model: DistributedDataParallel, seed: int) -> bool:
    """Return whether a backward pass of the caller's own leaves the mean of the ranks' gradients, as DDP does."""
    rows = Rows(seed, dist.get_world_size() * BATCH).x.to(rank_device())
    trained = [p for p in model.parameters() if p.requires_grad]
    mean = torch.autograd.grad(model.module(rows).square().sum() / dist.get_world_size(), trained)
    model.zero_grad()
    model(rows.chunk(dist.get_world_size())[dist.get_rank()]).square().sum().backward()
    pairs = zip(trained, mean, strict=True)
    return all(p.grad is not None and torch.allclose(p.grad, right) for p, right in pairs)  # all of them get one


def observe(seed: int, train_epoch: Callable[..., Any]) -> Evidence:
    """Return what each rank measured, by case."""
    return cases_on_ranks(_epochs, CASES, train_epoch, seed)


def _names(table: dict[str, _Case]) -> list[str]:
    """Return the cases of `table`, as the evidence calls them."""
    return [case_name(3 if name in ON_THREE else 2, name) for name in table]


def _wrong_conduct(seen: list[Evidence]) -> str | None:
    """Say what is wrong with how the ranks of a case treat the model and the data."""
    for rank, got in enumerate(seen):
        if got["at once"] > BATCH:
            return f"the model of rank {rank} was called with {got['at once']} rows; a micro-batch has {BATCH}."
        if got["graphs"]:
            return (
                f"when a micro-batch went into the model of rank {rank}, the graph of an earlier one was still alive. "
                "Call backward() on the loss of each micro-batch before the next one enters the model."
            )
        if got["held"] > HELD:
            return (
                f"{got['held']} earlier graphs were still referred to when a micro-batch went into the model of rank "
                f"{rank}: a loss that is kept keeps its graph. Add up loss.detach()."
            )
        if got["evaluation"]:
            return f"the model of rank {rank} was put into evaluation mode; it must stay in training mode."
        if got["autocast"]:
            return f"the model of rank {rank} ran under autocast; the contract's one process does not use it."
        if got["unmoved"]:
            return (
                f"on rank {rank}, {', '.join(got['unmoved'])} got the loader's data on the CPU. "
                "On a GPU that raises an error: move x and y to the device of the model's parameters."
            )
        if got["thawed"]:
            return f"a frozen parameter of rank {rank} was given a gradient. Frozen parameters stay frozen."
    return None


def _wrong_training(seen: list[Evidence], expected: list[Evidence]) -> str | None:
    """Say how the replicas of `seen` differ from each other and from those of `expected`."""
    for rank, (got, want) in enumerate(zip(seen, expected, strict=True)):
        if got["updates"] != want["updates"]:
            return f"rank {rank} stepped {got['updates']} times; it should make {want['updates']} updates."
        if got["rows"] != want["rows"]:
            return f"{got['rows']} rows went through the model of rank {rank}; it should see {want['rows']}, each once."
        if got["weights"] != seen[0]["weights"]:
            return f"the weights of ranks 0 and {rank} differ: gradients were not averaged, or not in the same way."
    for rank, (got, want) in enumerate(zip(seen, expected, strict=True)):
        asked, right = ([sorted(order) for order in one["orders"]] for one in (got, want))
        if asked != right and list(map(len, asked)) == list(map(len, right)):
            return (
                f"rank {rank} trained on other rows than those that the sampler gives it for the epoch, so its weights "
                "cannot be compared: see every_epoch_in_a_new_order."
            )
    got, want = seen[0]["moved"], expected[0]["moved"]
    off = relative_distance(got, want)
    if not off <= EXACT:
        a, b = torch.tensor(got).norm().item(), torch.tensor(want).norm().item()
        return (
            f"the weights moved {a / b:.4g} times as far as on the joint batch, and their total change differs from "
            f"the right one by {off:.2g} (relative). What weight does each row of a group have, what is in the "
            "gradients before the first row, and does anything else change the gradients or the learning rate?"
        )
    return None


class UpdateEqualsJointBatch(Check):
    """After an epoch the replicas are bit-identical, and equal to one process on the joint batch."""

    points = 1
    hint = (
        "DDP averages the ranks' gradients. Weight the losses so that every row of a group counts 1 / rows of "
        "the group; clear old gradients; divide once."
    )
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case in _names(EVEN):
            wrong = _wrong_conduct(seen[case]) or _wrong_training(seen[case], expected[case])
            if wrong:
                return f"{case}: {wrong}"
        case = _names(SEVERAL)[0]
        seen_rows, right_rows = ([rank["orders"] for rank in ranks[case]] for ranks in (seen, expected))
        if seen_rows == right_rows:  # or else there is no telling: see EveryEpochInANewOrder
            wrong = _wrong_training(seen[case], expected[case])
            if wrong:
                return f"{case}, though one is right: {wrong} What does a call find that the call before it has left?"
        return None


class RaggedGroupsWeighByRows(Check):
    """When the last micro-batch or the last group is smaller, every row of a group still has the same weight."""

    points = 1
    hint = "The last group of an epoch has fewer micro-batches, and the last micro-batch fewer rows: count the rows."
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case in _names(RAGGED):
            wrong = _wrong_training(seen[case], expected[case])
            if wrong:
                return f"{case}: {wrong}"
        return None


class OneSynchronizationPerUpdate(Check):
    """Gradients are sent once per update, for any number of micro-batches, and nothing else that large is."""

    points = 1
    hint = "How many all-reduces does your epoch make per update? DDP decides that in the forward pass."
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        single = _names({name: case for name, case in TABLE.items() if case.accumulate == 1})
        for case in _names(TABLE):  # of several epochs, too: the flag of one may be left for the next
            for rank, (got, right) in enumerate(zip(seen[case], expected[case], strict=True)):
                updates = got["updates"] or right["updates"]
                once = 2 * right["gradients"]  # an all-reduce sends its message twice (`Collective.volume`)
                times = (
                    f"{case}: rank {rank} sent {got['sent'] / once / updates:.1f} times an all-reduce of the gradients"
                )
                if got["sent"] > updates * (once + SLACK) + once // 4:
                    ask = "Which micro-batches of a group need none?"
                    if case in single:
                        ask = "DDP has averaged the gradients once by then. What else is sent?"
                    return f"{times} per update; it should be 1. {ask}"
                if got["sent"] < updates * once:
                    return f"{times} per update; it should be 1. Without it, each rank trains alone."
        for case in _names(TABLE):
            if not all(got["synchronizes"] for got in seen[case]):
                return (
                    f"{case}: DDP's gradient synchronization was left switched off, so in the next epoch each rank "
                    "would train alone. Use model.no_sync() as a `with` block."
                )
            if not all(got["averages"] for got in seen[case]):
                return (
                    f"{case}: a backward pass that follows the epoch does not leave the mean of the ranks' gradients, "
                    "as DDP does. Is a hook left in the model?"
                )
        return None


class EveryEpochInANewOrder(Check):
    """Each epoch goes through the rows in a new order, and the ranks' parts fit together."""

    points = 1
    hint = "The sampler shuffles with seed + epoch, and does not know the epoch unless you call set_epoch."
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        case, epochs = _names(SEVERAL)[0], SEVERAL["three epochs"].epochs
        for rank, (got, want) in enumerate(zip(seen[case], expected[case], strict=True)):
            orders, right = got["orders"], want["orders"]
            if orders == right:
                continue
            if all(order == orders[0] for order in orders):
                return (
                    f"rank {rank} saw its rows in the same order in all {len(orders)} epochs. Does the sampler know "
                    "the epoch?"
                )
            lengths = [len(order) for order in orders]
            if lengths != [len(order) for order in right]:
                return (
                    f"rank {rank} asked for {lengths} rows in {len(orders)} epochs; its part has {len(right[0])}. "
                    "Go through the loader once per call."
                )
            wrong = [epoch for epoch, a, b in zip(epochs, orders, right, strict=True) if a != b]
            return (
                f"called with epochs {', '.join(map(str, epochs))}, rank {rank} did not see the rows that the sampler "
                f"gives it for epoch {wrong[0]}."
            )
        return None


class LossIsOfAllRanks(Check):
    """The returned loss is the mean over the rows of all ranks, the same float on each."""

    points = 1
    hint = "Sum losses and rows on each rank, all_reduce both sums, and divide once, at the end."
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        # at a rate of 0 first: the mean is the same whatever is wrong with the updates
        for case in sorted(_names(TABLE), key=lambda case: any(expected[case][0]["moved"])):
            moved, right_moves = seen[case][0]["moved"], expected[case][0]["moved"]
            learning = any(right_moves)
            if learning and not relative_distance(moved, right_moves) <= EXACT:
                continue  # other updates have other losses: the first two checks say what is wrong
            for rank, (got, right) in enumerate(zip(seen[case], expected[case], strict=True)):
                for call, (a, b) in enumerate(zip(got["losses"], right["losses"], strict=True), 1):
                    if not isinstance(a, float):
                        return f"{case}: rank {rank} returned {a}; it should be a Python float."
                    if not near(a, b):
                        text = (
                            f"{case}, call {call}: rank {rank} returned {a:.6g}; the mean over all ranks is {b:.6g}. "
                        )
                        if not learning:
                            return text + "Which rows are summed, and what are they divided by?"
                        return text + "Is each loss that of the moment at which its rows were seen, in this call alone?"
        return None


EPOCH = (
    UpdateEqualsJointBatch,
    RaggedGroupsWeighByRows,
    OneSynchronizationPerUpdate,
    EveryEpochInANewOrder,
    LossIsOfAllRanks,
)
