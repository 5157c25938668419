"""Checks of part 3: the worker, from the first to the last line of a job."""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ...ranks.collectives import Collectives
from ..base import Check, Evidence
from ..probing.distance import relative_distance
from ..probing.on_ranks import on_ranks
from .material import EXACT, Net, Rows, as_measured, weights


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
        model = Net()
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
        train=Rows(seed, n),
        test=Rows(seed + 1, 7),
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
        fresh = Net()
        try:
            fresh.load_state_dict(torch.load(paths[rank], map_location="cpu"))
            saved = weights(fresh)
        except (RuntimeError, TypeError, AttributeError, EOFError, ValueError) as error:
            saved = {"error": type(error).__name__, "text": str(error)}
    return {
        "log": log,
        "wrapped": not isinstance(model, Net),
        "weights": weights(model),
        "frozen": sum(optimized),
        "saved": saved,
        "there": complete,
        "open": dist.is_initialized(),
        "history": [{name: as_measured(value) for name, value in dict(entry).items()} for entry in history],
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


WORKER = (ReplicasShareTheWorkAndAgree, Rank0SavesForAll, ClosesAndReports)
