"""X3: training on two ranks. Ten checks of a point each.

All of them run real ranks. Numbers are compared in FP64, where "the same as one process" leaves no room for a wrong
divisor; what was sent is counted, and the data set itself records who saw which row.
"""

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from ..core.device import rank_device
from ..ranks.collectives import Collectives
from .base import Check, Evidence, Part
from .probing.distance import relative_distance
from .probing.on_ranks import on_ranks

EXACT = 1e-6  # relative
SLACK = 512  # bytes an update that may be sent beside the gradients: counts and losses


class _Net(nn.Module):
    """A classifier in FP64 with a weight that two layers share and a bias that is frozen."""

    def __init__(self, dropout: float = 0.0, norm: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 5)
        self.wide = nn.Sequential(nn.Linear(12, 40), nn.Tanh(), nn.Linear(40, 12))
        self.second.weight = self.first.weight
        self.second.bias.requires_grad_(False)
        self.norm = nn.BatchNorm1d(12) if norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.second(torch.tanh(self.first(x))))
        return self.head(self.dropout(self.norm(x + self.wide(x))))


class _Rows(Dataset):
    """Rows whose losses differ a great deal, and a log of which were asked for."""

    def __init__(self, seed: int, n: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        scale = torch.linspace(0.2, 3.0, n, dtype=torch.float64)[:, None]
        self.x = torch.randn(n, 12, dtype=torch.float64, generator=generator) * scale
        self.y = torch.randint(5, (n,), generator=generator)
        self.asked: list[int] = []

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        self.asked.append(int(i))
        return self.x[i], self.y[i]


def _weights(model: nn.Module) -> list[float]:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).cpu().tolist()


def _near(a: Any, b: float) -> bool:
    return isinstance(a, int | float) and abs(a - b) <= EXACT * max(1.0, abs(b))


def _plain(value: Any) -> Any:
    """Keep what a report can carry; name the type of what it cannot."""
    return value if isinstance(value, int | float | str | None) else type(value).__name__


# -- part 1: an epoch ---------------------------------------------------------------------------------------


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
    inner = _Net().to(rank_device())
    model = DistributedDataParallel(inner)
    trained = [p for p in inner.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=training.lr, weight_decay=0.1)  # decay tells a gradient from a rate
    updates = []
    optimizer.register_step_post_hook(lambda *_: updates.append(None))
    at_once: list[int] = []
    inner.register_forward_pre_hook(lambda _, args: at_once.append(len(args[0])))
    rows = _Rows(seed, training.rows)
    loader = DataLoader(rows, batch_size=4, sampler=DistributedSampler(rows, shuffle=True, seed=seed))
    before = _weights(inner)
    for p in inner.parameters():  # left behind by an earlier step
        p.grad = torch.full_like(p, 7.0) if p.requires_grad else None
    orders, losses = [], []
    with Collectives() as collectives:
        for epoch in range(training.epochs):
            rows.asked.clear()
            losses.append(_plain(train_epoch(model, loader, optimizer, training.accumulate, epoch)))
            orders.append(rows.asked[:])
    after = _weights(inner)
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
                    if not _near(a, b):
                        if learning:
                            return (
                                f"{case}: rank {rank} returned {a:.6g}; the mean over all ranks is {b:.6g}. "
                                "Is each loss that of the moment at which its rows were seen?"
                            )
                        return (
                            f"{case}, epoch {epoch}: rank {rank} returned {a:.6g}; the mean over all ranks is {b:.6g}."
                        )
        return None


# -- part 2: evaluation -------------------------------------------------------------------------------------


def _evaluation(evaluate: Callable[..., Any], seed: int, n: int, training: bool) -> Evidence:
    torch.manual_seed(seed)
    inner = _Net(dropout=0.5, norm=True).to(rank_device())
    model = DistributedDataParallel(inner)
    model.train(training)
    calls: list[tuple[int, bool, bool]] = []
    inner.register_forward_pre_hook(
        lambda module, args: calls.append((len(args[0]), module.training, torch.is_grad_enabled()))
    )
    metrics = evaluate(model, _Rows(seed, n), 5)
    return {
        "metrics": {name: _plain(value) for name, value in dict(metrics).items()},
        "rows": [rows for rows, _, _ in calls],
        "train mode": any(mode for _, mode, _ in calls),
        "graph": any(graph for _, _, graph in calls),
        "mode after": inner.training,
        "wrapper after": model.training,
    }


EVALUATIONS = {
    "40 rows, 2 ranks": (2, 40, True),
    "41 rows, 2 ranks": (2, 41, True),
    "37 rows, 3 ranks": (3, 37, False),
    "2 rows, 3 ranks": (3, 2, True),
}


class EveryTestRowCountsOnce(Check):
    """Loss and accuracy are those of the whole data set, each row once, the same on every rank."""

    points = 1
    hint = (
        "A DistributedSampler repeats rows until all ranks have as many. Take every N-th row yourself, sum losses, "
        "right answers and rows, all_reduce the three sums, then divide."
    )

    @staticmethod
    def probe(seed: int, evaluate: Callable[..., Any]) -> Evidence:
        return {
            case: on_ranks(_evaluation, ranks, evaluate, seed, n, training)
            for case, (ranks, n, training) in EVALUATIONS.items()
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            for rank, (got, right) in enumerate(zip(seen[case], want, strict=True)):
                for name, value in right["metrics"].items():
                    answer = got["metrics"].get(name)
                    if not isinstance(answer, float):
                        return f"{case}: the {name} of rank {rank} is {answer}; a Python float is asked for."
                    if not _near(answer, value):
                        return f"{case}: the {name} of rank {rank} is {answer:.6g}; over all rows it is {value:.6g}."
        return None


class EvaluationSharesTheWork(Check):
    """No rank sees more than its part; evaluation mode without a graph, and the mode restored."""

    points = 1
    hint = "range(rank, len(dataset), world_size); model.module.eval() and torch.no_grad(); remember the mode."

    @staticmethod
    def probe(seed: int, evaluate: Callable[..., Any]) -> Evidence:
        return EveryTestRowCountsOnce.probe(seed, evaluate)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case in expected:
            ranks, n, training = EVALUATIONS[case]
            most = -(-n // ranks)
            for rank, got in enumerate(seen[case]):
                where = f"{case}: rank {rank}"
                if sum(got["rows"]) > most:
                    return f"{where} ran {sum(got['rows'])} rows through the model; its part has at most {most}."
                if max(got["rows"], default=0) > 5:
                    return f"{where} ran {max(got['rows'])} rows at once; batch_size is 5."
                if got["train mode"]:
                    return f"{where} ran the model in training mode."
                if got["graph"]:
                    return f"{where} recorded a graph: torch.no_grad() is missing."
                if got["mode after"] != training:
                    return f"{where} left the model in {'training' if got['mode after'] else 'evaluation'} mode."
                if got["wrapper after"] != training:
                    return f"{where} left the wrapper around the model in another mode; the model's is right."
            if sum(sum(got["rows"]) for got in seen[case]) < n:
                return f"{case}: not all rows went through the model."
        return None


# -- part 3: the worker -------------------------------------------------------------------------------------


def _train_simply(log: list[Evidence]) -> Callable[..., float]:
    """Return a `train_epoch` without accumulation that writes down what it was given."""

    def train_epoch(model: Any, loader: Any, optimizer: Any, accumulate: int, epoch: int) -> float:
        loader.sampler.set_epoch(epoch)
        device = next(model.parameters()).device
        with Collectives() as collectives:
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(x.to(device)), y.to(device)).backward()
                optimizer.step()
        rows, loader.dataset.asked = loader.dataset.asked, []
        reduced = sum(call.nbytes for call in collectives.calls if call.name == "all_reduce")
        log.append(
            {
                "epoch": epoch,
                "accumulate": accumulate,
                "rows": rows,
                "batch": loader.batch_size,
                "sent": reduced,
                "wrapped": isinstance(model, DistributedDataParallel),
                "evaluated": 0,
            }
        )
        return 100.0 + epoch

    return train_epoch


def _worker(worker: Callable[..., Any], seed: int, epochs: int, n: int, folder: str) -> Evidence:
    """One rank: the learner's worker on a job that keeps a log. Each rank has its own path for the checkpoint."""
    rank = int(os.environ["RANK"])
    log: list[Evidence] = []
    optimized: list[int] = []

    def make_model() -> nn.Module:
        torch.manual_seed(seed + 1000 * rank)
        model = _Net()
        if rank == 0:  # saving takes its time
            model.register_state_dict_post_hook(lambda *_: time.sleep(0.3))
        return model

    def make_optimizer(parameters: Any) -> torch.optim.Optimizer:
        chosen = list(parameters)
        optimized.append(sum(not p.requires_grad for p in chosen))
        return torch.optim.SGD(chosen, lr=0.1, momentum=0.9)  # a second optimizer would begin without its memory

    def evaluate(model: Any, dataset: Any, batch_size: int) -> dict[str, float]:
        if log:  # which epochs have been evaluated on this rank, and with the wrapped model?
            log[-1]["evaluated"] += 1 if isinstance(model, DistributedDataParallel) else 100
        return {"loss": float(len(dataset)), "accuracy": 1.0 / batch_size}

    paths = [Path(folder) / f"{number}.pt" for number in range(int(os.environ["WORLD_SIZE"]))]
    job = SimpleNamespace(
        make_model=make_model,
        make_optimizer=make_optimizer,
        train=_Rows(seed, n),
        test=_Rows(seed + 1, 7),
        epochs=epochs,
        micro_batch=4,
        accumulate=3,
        seed=seed + 17,  # not the default of the sampler
        checkpoint=str(paths[rank]),
        train_epoch=_train_simply(log),
        evaluate=evaluate,
    )
    model, history = worker(job)
    complete = paths[0].exists()  # at the moment at which the worker returns
    saved: Any = None
    if paths[rank].exists():
        fresh = _Net()
        try:
            fresh.load_state_dict(torch.load(paths[rank], map_location="cpu"))
            saved = _weights(fresh)
        except (RuntimeError, TypeError, AttributeError, EOFError, ValueError) as error:
            saved = {"error": type(error).__name__, "text": str(error)}
    return {
        "log": log,
        "wrapped": not isinstance(model, _Net),
        "weights": _weights(model),
        "frozen": sum(optimized),
        "saved": saved,
        "there": complete,
        "open": dist.is_initialized(),
        "history": [{name: _plain(value) for name, value in dict(entry).items()} for entry in history],
    }


def _jobs(worker: Callable[..., Any], seed: int) -> Evidence:
    seen = {}
    for ranks in (2, 3):
        with tempfile.TemporaryDirectory() as folder:
            seen[f"{ranks} ranks"] = on_ranks(
                _worker, ranks, worker, seed, 2, 36, folder, process_group=False
            )  # 36 rows divide by 2 and by 3
    return seen


class ReplicasShareTheWorkAndAgree(Check):
    """Each row goes to one rank in each epoch, all replicas start as rank 0's and end bit-identical."""

    points = 1
    hint = (
        "DistributedDataParallel sends rank 0's weights to all and averages gradients; DistributedSampler with job.seed"
        " deals out the rows. The optimizer gets what requires a gradient."
    )

    @staticmethod
    def probe(seed: int, worker: Callable[..., Any]) -> Evidence:
        return _jobs(worker, seed)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            got = seen[case]
            for rank, (mine, right) in enumerate(zip(got, want, strict=True)):
                calls = [(entry["epoch"], entry["accumulate"], entry["batch"]) for entry in mine["log"]]
                if calls != [(entry["epoch"], entry["accumulate"], entry["batch"]) for entry in right["log"]]:
                    return f"{case}: rank {rank} called train_epoch with (epoch, accumulate, batch size) {calls}."
                if not all(entry["wrapped"] for entry in mine["log"]):
                    return f"{case}: rank {rank} called train_epoch with a model that DDP does not wrap."
                if mine["wrapped"]:
                    return f"{case}: rank {rank} returned the wrapper; return the model inside."
                if mine["frozen"]:
                    return f"{case}: the optimizer of rank {rank} got {mine['frozen']} frozen parameters."
            for epoch in range(len(want[0]["log"])):
                rows = sorted(row for rank in got for row in rank["log"][epoch]["rows"])
                if rows != list(range(36)):
                    twice = len(rows) - len(set(rows))
                    missing = 36 - len(set(rows))
                    return f"{case}, epoch {epoch}: {twice} rows were used more than once and {missing} not at all."
            orders = [entry["rows"] for entry in got[0]["log"]]
            if orders != [entry["rows"] for entry in want[0]["log"]]:
                return f"{case}: the order of the rows is not that of a DistributedSampler that shuffles with job.seed."
            for rank, mine in enumerate(got):
                if mine["weights"] != got[0]["weights"]:
                    off = relative_distance(mine["weights"], got[0]["weights"])
                    return f"{case}: the weights of ranks 0 and {rank} differ by {off:.2g} (relative) at the end."
                if sum(entry["sent"] for entry in mine["log"]) < sum(entry["sent"] for entry in want[rank]["log"]):
                    return f"{case}: rank {rank} averaged no gradients with the others in the backward pass."
            if not relative_distance(got[0]["weights"], want[0]["weights"]) <= EXACT:
                return f"{case}: the replicas agree, but not on what training rank 0's model gives."
        return None


class Rank0SavesForAll(Check):
    """Rank 0 alone saves a checkpoint that loads into a fresh model, and nobody leaves before it is complete."""

    points = 1
    hint = "model.module.state_dict() has no 'module.' in its names; dist.barrier() after saving makes the others wait."

    @staticmethod
    def probe(seed: int, worker: Callable[..., Any]) -> Evidence:
        return _jobs(worker, seed)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case in expected:
            for rank, got in enumerate(seen[case]):
                if rank and got["saved"] is not None:
                    return f"{case}: rank {rank} has saved, too."
                if not rank and got["saved"] is None:
                    return f"{case}: rank 0 has saved nothing at job.checkpoint."
                if not rank and isinstance(got["saved"], dict):
                    error = got["saved"]["text"].partition("\n")[2].strip()[:150] or got["saved"]["error"]
                    return f"{case}: the checkpoint does not load into job.make_model(): {error}"
                if not rank and got["saved"] != got["weights"]:
                    return f"{case}: the checkpoint does not hold the weights with which training ended."
                if not got["there"]:
                    return f"{case}: rank {rank} had returned before the checkpoint was complete."
        return None


class ClosesAndReports(Check):
    """The process group is closed, and each rank returns one entry an epoch with the numbers of training and test."""

    points = 1
    hint = "dist.destroy_process_group() before the return; history.append({'train_loss': ..., **job.evaluate(...)})."

    @staticmethod
    def probe(seed: int, worker: Callable[..., Any]) -> Evidence:
        return _jobs(worker, seed)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            for rank, (got, right) in enumerate(zip(seen[case], want, strict=True)):
                if got["open"]:
                    return f"{case}: rank {rank} left the process group open."
                for entry in got["log"]:
                    if entry["evaluated"] >= 100:
                        return f"{case}: rank {rank} called evaluate with the model inside; pass the wrapped one."
                    if entry["evaluated"] != 1:
                        return (
                            f"{case}: rank {rank} called evaluate {entry['evaluated']} times after epoch "
                            f"{entry['epoch']}. Every rank calls it once after each epoch: all ranks share the work."
                        )
                if got["history"] != right["history"]:
                    return f"{case}: the history of rank {rank} is {got['history']}; it should be {right['history']}."
        return None


PARTS: tuple[Part, ...] = (
    Part(
        "x3.epoch",
        ("train_epoch",),
        (
            UpdateEqualsJointBatch,
            RaggedGroupsWeighByRows,
            OneSynchronisationAnUpdate,
            EveryEpochInANewOrder,
            LossIsOfAllRanks,
        ),
    ),
    Part("x3.evaluate", ("evaluate",), (EveryTestRowCountsOnce, EvaluationSharesTheWork)),
    Part("x3.worker", ("worker",), (ReplicasShareTheWorkAndAgree, Rank0SavesForAll, ClosesAndReports)),
)
