"""Checks of part 3: the worker, from the first to the last line of a job. All three judge the same jobs."""

import contextlib
import io
import os
import tempfile
import time
from collections.abc import Callable, Iterator
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
from ..probing.set_clock import sleepless
from .material import EXACT, Net, Rows, as_measured, weights
from .on_gpus import opened_on_gpus, patched

ROWS = 36  # divides by 2 and by 3
LOCAL_RANKS = (2, 4)  # of a machine with two GPUs: with four ranks, they run on the CPU
LATE = 0.3  # seconds between the first and the second half of a checkpoint
ASLEEP = 600.0  # seconds that a worker may sleep, which take no time here: one that waits for a file that never comes
_sleep = time.sleep


class _Counting(Net):
    """A model with a buffer, which a checkpoint holds as well."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows += len(x)
        return super().forward(x)


def _train_simply(log: list[Evidence], trained: list[nn.Module], data: Rows) -> Callable[..., float]:
    """Return a `train_epoch` without accumulation that logs what it was given, and which model and rows it used."""

    def train_epoch(model: Any, loader: Any, optimizer: Any, accumulate: int, epoch: int) -> float:
        sampler, kind = loader.sampler, type(loader.sampler).__name__
        if isinstance(sampler, torch.utils.data.DistributedSampler):
            kind = "DistributedSampler"  # or derived from it
            sampler.set_epoch(epoch)
        device = next(model.parameters()).device
        processes, loader.num_workers = loader.num_workers, 0  # counted, and not started
        with Collectives() as collectives:
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(x.to(device)), y.to(device)).backward()
                optimizer.step()
        trained.append(getattr(model, "module", model))
        rows, data.asked = data.asked, []
        reduced = sum(call.nbytes for call in collectives.calls if call.name == "all_reduce")
        log.append(
            {
                "epoch": epoch,
                "accumulate": accumulate,
                "rows": rows,
                "batch": loader.batch_size,
                "processes": processes,
                "sampler": kind,
                "sent": reduced,
                "wrapped": isinstance(model, DistributedDataParallel),
                "training": all(layer.training for layer in model.modules()),
                "evaluated": 0,
            }
        )
        return 99.0 + len(log)  # not by the epoch's number, which another check judges

    return train_epoch


@contextlib.contextmanager
def _slow_files(worker: Callable[..., Any]) -> Iterator[list[str]]:
    """Let `torch.save` pause between the two halves of a file, and let no rank wait by sleeping.

    The list fills with the names of the files.
    """
    save, files = torch.save, []

    def slowly(obj: Any, f: Any, *args: Any, **options: Any) -> None:
        whole = io.BytesIO()
        save(obj, whole, *args, **options)
        data = whole.getvalue()
        if not isinstance(f, io.BytesIO):
            files.append(Path(str(getattr(f, "name", f))).name)
        with contextlib.nullcontext(f) if hasattr(f, "write") else open(f, "wb") as file:
            for half in (data[: len(data) // 2], data[len(data) // 2 :]):
                file.write(half)
                file.flush()
                _sleep(LATE / 2)

    with sleepless(getattr(worker, "__globals__", {}), ASLEEP), patched(worker, {(torch, "save"): slowly}):
        yield files


def _read(path: Path) -> Any:
    """Return what the file at `path` holds; None where there is none, or only a part of one."""
    try:
        return torch.load(path, map_location="cpu", weights_only=False)
    except Exception:  # PyTorch raises many kinds of errors for a file that has been cut off
        return None


def _loaded(path: Path) -> Any:
    """Return the numbers of the checkpoint at `path`, loaded into a fresh model; the error where that fails."""
    if not path.exists():
        return None
    fresh = _Counting()
    try:
        fresh.load_state_dict(torch.load(path, map_location="cpu"))
    except Exception as error:  # whatever the answer has put there
        return {"error": type(error).__name__, "text": str(error)}
    return _numbers(fresh)


def _numbers(model: nn.Module) -> list[float]:
    return [*weights(model), *(float(buffer) for buffer in model.buffers())]


def _both(returned: Any) -> tuple[nn.Module, list[dict[str, Any]]]:
    """Return the model and the history that a worker returned.

    Raises:
        TypeError: if it returned something else.
    """
    match returned:
        case nn.Module() as model, list() as history if all(isinstance(entry, dict) for entry in history):
            return model, history
        case tuple() | list():
            what = f"({', '.join(type(part).__name__ for part in returned)})"
        case _:
            what = type(returned).__name__
    raise TypeError(f"worker returned {what}; it should return (model, history), with a list of dictionaries")


def _worker(worker: Callable[..., Any], seed: int, epochs: int, folder: str) -> Evidence:
    """One rank: the learner's worker on a job that keeps a log. Each rank has its own path for the checkpoint."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    on_gpus = [opened_on_gpus(worker, folder, local) for local in LOCAL_RANKS] if ranks == 2 else None
    if ranks == 3:  # as if each had a machine of its own: one rank 0, and three local ranks 0
        os.environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    log: list[Evidence] = []
    optimized: list[int] = []
    trained: list[nn.Module] = []

    def make_model() -> nn.Module:
        torch.manual_seed(seed + 1000 * rank)
        return _Counting()

    def make_optimizer(parameters: Any) -> torch.optim.Optimizer:
        chosen = list(parameters)
        single = [p for one in chosen for p in (one["params"] if isinstance(one, dict) else [one])]  # groups are fine
        optimized.append(sum(not p.requires_grad for p in single))
        return torch.optim.SGD(chosen, lr=0.1, momentum=0.9)  # a second optimizer would begin without its memory

    def evaluate(model: Any, dataset: Any, batch_size: int) -> dict[str, float]:
        if log:  # which epochs have been evaluated on this rank, and with the wrapped model?
            log[-1]["evaluated"] += 1 if isinstance(model, DistributedDataParallel) else 100
            log[-1]["evaluated_on"] = [len(dataset), batch_size]
        # Both get worse with every epoch: the last weights are to be saved, and not the best.
        return {"loss": len(dataset) + len(log) / 8, "accuracy": 1.0 / batch_size - len(log) / 64}

    paths, train = [Path(folder) / f"{number}.pt" for number in range(ranks)], Rows(seed, ROWS)
    job = SimpleNamespace(
        make_model=make_model,
        make_optimizer=make_optimizer,
        train=train,
        test=Rows(seed + 1, 7),
        epochs=epochs,
        micro_batch=4,
        accumulate=3,
        seed=seed + 17,  # not the default of the sampler
        checkpoint=str(paths[rank]),
        train_epoch=_train_simply(log, trained, train),
        evaluate=evaluate,
    )
    with _slow_files(worker) as files:
        model, history = _both(worker(job))
    complete = _read(paths[0]) is not None  # at the moment at which the worker returns
    return {
        "log": log,
        "wrapped": isinstance(model, DistributedDataParallel),
        "itself": all(model is one for one in trained),
        "weights": weights(model),
        "numbers": _numbers(model),
        "frozen": sum(optimized),
        "thawed": [p.requires_grad for p in model.parameters()] != [p.requires_grad for p in _Counting().parameters()],
        "saved": _loaded(paths[rank]),
        "there": complete,
        "files": files[:3],
        "open": dist.is_initialized(),
        "on gpus": on_gpus,
        "history": [{name: as_measured(value) for name, value in dict(entry).items()} for entry in history],
    }


def observe(seed: int, worker: Callable[..., Any]) -> Evidence:
    """Return what each rank of a job on 2 ranks and of one on 3 has measured."""
    seen = {}
    for ranks, epochs in ((2, 2), (3, 3)):
        with tempfile.TemporaryDirectory() as folder:
            seen[f"{ranks} ranks"] = on_ranks(_worker, ranks, worker, seed, epochs, folder, process_group=False)
    return seen


class ReplicasShareTheWorkAndAgree(Check):
    """Each row goes to one rank in each epoch, all replicas start as rank 0's and end bit-identical."""

    points = 1
    hint = (
        "DistributedDataParallel sends rank 0's weights to all and averages gradients; DistributedSampler with job.seed"
        " distributes the rows. The optimizer gets the parameters that require a gradient."
    )
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            got = seen[case]
            for rank, (mine, right) in enumerate(zip(got, want, strict=True)):
                wrong = _wrong_calls(mine, right)
                if wrong:
                    return f"{case}: rank {rank} {wrong}"
            for epoch in range(len(want[0]["log"])):
                rows = sorted(row for rank in got for row in rank["log"][epoch]["rows"])
                if rows != list(range(ROWS)):
                    twice = len(rows) - len(set(rows))
                    missing = ROWS - len(set(rows))
                    ask = "What drops them?"
                    if twice:
                        ask = (
                            "How does the sampler know the ranks and their number, and do all ranks shuffle with the "
                            "same seed?"
                        )
                    return f"{case}, epoch {epoch}: {twice} rows were used more than once, {missing} not at all. {ask}"
            orders = [entry["rows"] for entry in got[0]["log"]]
            if orders != [entry["rows"] for entry in want[0]["log"]]:
                return f"{case}: the order of the rows is not that of a DistributedSampler that shuffles with job.seed."
            for rank, (mine, right) in enumerate(zip(got, want, strict=True)):
                if mine["weights"] != got[0]["weights"]:
                    off = relative_distance(mine["weights"], got[0]["weights"])
                    return (
                        f"{case}: the weights of ranks 0 and {rank} differ by {off:.2g} (relative) at the end. "
                        "Do all start from rank 0's weights, and are gradients averaged in every step?"
                    )
                for entry, other in zip(mine["log"], right["log"], strict=True):
                    if not other["sent"] <= entry["sent"] < 1.5 * other["sent"]:
                        times = entry["sent"] / other["sent"]
                        return (
                            f"{case}, epoch {entry['epoch']}: the backward passes of rank {rank} averaged gradients "
                            f"{times:.1f} times; it should be once. How many times is the model wrapped?"
                        )
            if not relative_distance(got[0]["weights"], want[0]["weights"]) <= EXACT:
                return (
                    f"{case}: the replicas agree, but a correct run from rank 0's weights ends with different ones. "
                    "Which weights does training start from, and which optimizer takes the steps?"
                )
        return None


def _wrong_calls(mine: Evidence, right: Evidence) -> str | None:
    """Say what is wrong with what a rank gave to `train_epoch` and to the optimizer, and with what it returned."""
    calls = [(entry["epoch"], entry["accumulate"], entry["batch"]) for entry in mine["log"]]
    wanted = [(entry["epoch"], entry["accumulate"], entry["batch"]) for entry in right["log"]]
    if calls != wanted:
        return f"called train_epoch with (epoch, accumulate, batch size) {calls}; it should be {wanted}."
    if not all(entry["wrapped"] for entry in mine["log"]):
        return "called train_epoch with a model that DDP does not wrap."
    if not all(entry["training"] for entry in mine["log"]):
        return "called train_epoch with a model in evaluation mode."
    processes = max(entry["processes"] for entry in mine["log"])
    if processes:
        return f"gave its DataLoader num_workers={processes}; it should load without loader processes."
    samplers = {entry["sampler"] for entry in mine["log"]} - {entry["sampler"] for entry in right["log"]}
    if samplers:
        return f"called train_epoch with a loader that has a {samplers.pop()}; it should be a DistributedSampler."
    if mine["wrapped"]:
        return "returned the DDP wrapper; return the model inside it."
    if not mine["itself"]:
        return "returned a model other than the one that train_epoch trained. Return the trained model, not a copy."
    if mine["thawed"]:
        return "changed which parameters are frozen; the frozen ones of job.make_model() stay frozen."
    if mine["frozen"]:
        return f"gave the optimizer frozen parameters ({mine['frozen']}); give it only those that require a gradient."
    return None


class Rank0SavesForAll(Check):
    """Only rank 0 saves a checkpoint, it loads into a fresh model, and no rank leaves before it is complete."""

    points = 1
    hint = "Under which names does the wrapped model save its weights? What do the other ranks do while rank 0 writes?"
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case in expected:
            alone = " LOCAL_RANK is 0 on each rank here, as if each had its own machine." if case == "3 ranks" else ""
            for rank, got in enumerate(seen[case]):
                if rank and got["saved"] is not None:
                    return f"{case}: rank {rank} also saved a checkpoint; only rank 0 of the job may.{alone}"
                if rank and got["files"]:
                    return f"{case}: rank {rank} also saved {', '.join(got['files'])}; only rank 0 of the job saves."
                if not rank and got["saved"] is None:
                    return f"{case}: rank 0 saved no file at job.checkpoint."
                if not got["there"]:
                    return (
                        f"{case}: rank {rank} returned before the checkpoint was complete. "
                        "Which call makes it wait for rank 0?"
                    )
                if not rank and isinstance(got["saved"], dict):
                    error, text = got["saved"]["error"], got["saved"]["text"].partition("\n")[2].strip()[:150]
                    wrong = text if error == "RuntimeError" and text else f"{error}. Is it a state_dict?"
                    return f"{case}: the checkpoint does not load into job.make_model(): {wrong}"
                if not rank and got["saved"] != got["numbers"]:
                    return (
                        f"{case}: the checkpoint does not hold the weights with which training ended. "
                        "Is it saved after the last epoch, with that epoch's weights, and from which model?"
                    )
        return None


class ClosesAndReports(Check):
    """The process group fits the device and is closed; each rank returns one entry per epoch, of training and test."""

    points = 1
    hint = (
        "On a GPU: torch.cuda.set_device(here) and dist.init_process_group('nccl', device_id=here).\n"
        "What must be closed before the return, and what does the history have for each epoch?"
    )
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            for rank, (got, right) in enumerate(zip(seen[case], want, strict=True)):
                if got["open"]:
                    return f"{case}: rank {rank} left the process group open. Destroy it before you return."
                for entry in got["log"]:
                    if entry["evaluated"] >= 100:
                        return f"{case}: rank {rank} called evaluate with the inner model; pass the wrapped one."
                    if entry["evaluated"] != 1:
                        return (
                            f"{case}: rank {rank} called evaluate {entry['evaluated']} times after epoch "
                            f"{entry['epoch']}. Every rank calls it once after each epoch: all ranks share the work."
                        )
                asked = [[entry.get("evaluated_on") for entry in one["log"]] for one in (got, right)]
                if asked[0] != asked[1]:
                    return (
                        f"{case}: rank {rank} called evaluate with (rows, batch size) {asked[0]}; it should be "
                        f"{asked[1]}: job.test and job.micro_batch."
                    )
                if got["history"] != right["history"]:
                    return f"{case}: the history of rank {rank} is {got['history']}; it should be {right['history']}."
                for local, mine, ideal in zip(LOCAL_RANKS, got["on gpus"] or [], right["on gpus"] or [], strict=False):
                    wrong = _wrong_on_gpus(mine, ideal)
                    if wrong:
                        return f"where a machine has 2 GPUs and {local} ranks: rank {rank} {wrong}"
        return None


def _wrong_on_gpus(got: Evidence, right: Evidence) -> str | None:
    """Say what a rank does wrong where there are GPUs: `rank_device()` is one of them, or the CPU."""
    gpu = right["device_id"]
    if not got["opened"]:
        return f"opened no process group: it ended with {got['ended']} first."
    if gpu is None:
        return _wrong_on_cpu(got)
    if got["backend"] is not None and "nccl" not in got["backend"]:
        return f"opened the process group over {got['backend']}; it should be NCCL."
    if got["device_id"] != gpu:
        return f"opened the process group with device_id={got['device_id']}; {gpu} is its GPU."
    if got["current"] != gpu:
        return f"has {got['current']} as the current device; {gpu} is its GPU (torch.cuda.set_device)."
    if got["at_opening"] != gpu:
        return f"makes {gpu} the current device after it has opened the process group; do that first."
    if got["moved"] != gpu:
        return f"has moved the model to {got['moved']}; {gpu} is its GPU."
    return None


def _wrong_on_cpu(got: Evidence) -> str | None:
    """Say what a rank does wrong where there are GPUs, and `rank_device()` is the CPU."""
    for seen, what in ((got["backend"], "over nccl"), (got["device_id"], f"with device_id={got['device_id']}")):
        if seen is not None and seen != "gloo":
            return f"opened the process group {what}; rank_device() is the CPU there, so it should be gloo."
    if got["moved"] != "cpu":
        return f"has moved the model to {got['moved']}; rank_device() is the CPU there."
    return None


WORKER = (ReplicasShareTheWorkAndAgree, Rank0SavesForAll, ClosesAndReports)
