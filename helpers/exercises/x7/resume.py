"""Checks of part 3: a checkpoint of 4 ranks goes on with 2, and theirs with 4 again. Both judge the same runs."""

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves

from ...ranks.collectives import Collectives
from ..base import Check, Evidence
from ..probing.on_ranks import on_ranks
from .subject import LENGTH, VOCABULARY, mesh_of, sharded

EXACT = 1e-5  # relative: sums over 2 ranks are rounded otherwise than over 4
ROWS, LAST, LATER = 8, 2**24 + 1, 2**24 + 3  # LAST and LATER are the numbers that are saved: no FP32 number is equal
STEPS, MORE = range(2, 4), range(4, 6)  # after both checkpoints: moments and the learning rate show in the second step
WIDER = 254
NOTES = 2_500_000  # bytes beside weights and two moments: names, shapes and places of shards; less than the weights
WORDS = {
    "weights": "the weights",
    "gradients": "the gradients",
    "buffers": "the buffers",
    "moments": "the optimizer's moments",
    "options": "the optimizer's options",
    "modes": "the mode of a layer",
    "generator": "the random generator's state",
}
COMES_BACK = ("weights", "buffers", "moments", "modes")  # to the last bit
RATE, SLOWER = 0.01, 0.004  # the learning rate until the checkpoint, and from there on, as a schedule sets it
OPTIONS = ("lr", "betas", "eps", "weight_decay")
ENDS = 10.0  # seconds at most for a thread that is left to end
EARLIER = "earlier"  # the folder of a checkpoint before the one that counts
LATE = 0.05  # seconds by which rank 0 is behind after each of its broadcasts: what it writes after the last comes late
THREADS_LATE = 0.3  # seconds by which a thread starts late, so that the files are listed before it writes any


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    """Take steps on the joint batch; return the joint loss of each."""
    losses = []
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        tokens = torch.randint(VOCABULARY, (ROWS, LENGTH), generator=generator)
        mine = tokens.chunk(dist.get_world_size())[dist.get_rank()]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(mine).flatten(0, 1), mine.flatten())
        loss.backward()
        optimizer.step()
        joint = loss.detach().clone()
        dist.all_reduce(joint)
        losses.append(joint.item() / dist.get_world_size())
    return losses


def _fresh(seed: int, shape: tuple[int, ...] = ()) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = sharded(seed, mesh_of(shape or (dist.get_world_size(),)), WIDER)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return model, torch.optim.AdamW(groups, lr=RATE, fused=True)  # one operation for all: its placement is found once


class _Watched(Collectives):
    """Collectives, and which tensors are made that have the size of a whole matrix of the model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        ranks = dist.get_world_size()
        self.whole: set[tuple[int, ...]] = set()
        self._sizes = {tuple(p.shape) for p in model.parameters() if p.ndim > 1 and len(p) >= ranks}

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Record the operation, and the sizes of what it returns; a fake tensor and a DTensor are others' types."""
        super().see(func, args, kwargs, result)
        for tensor in tree_leaves(result):
            if type(tensor) is Tensor and tuple(tensor.shape) in self._sizes and not tensor.is_meta:
                self.whole.add(tuple(tensor.shape))


def _move_schedules(optimizer: torch.optim.Optimizer) -> None:
    """Change all options as schedules may, each group's in its own way."""
    for number, group in enumerate(optimizer.param_groups, 1):
        group["lr"], group["betas"] = SLOWER / number, (0.85 - 0.05 * number, 0.99 - 0.01 * number)
        group["eps"], group["weight_decay"] = 1e-5 / number, 0.3 / number


class _Late(Collectives):
    """Collectives after whose broadcasts rank 0 is late."""

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Record the operation, and let rank 0 fall behind."""
        before = self.count("broadcast")
        super().see(func, args, kwargs, result)
        if self.count("broadcast") > before and dist.get_rank() == 0:
            time.sleep(LATE)


@contextmanager
def _ended_threads() -> Iterator[None]:
    """Wait at the end for threads that were started meanwhile: one that saves uses the group, as training does."""
    before = threading.enumerate()
    yield
    for thread in set(threading.enumerate()).difference(before):
        thread.join(ENDS)


@contextmanager
def _late_threads() -> Iterator[None]:
    """Let each thread that is started meanwhile wait before it does anything."""
    run = threading.Thread.run

    def late(self: threading.Thread) -> None:
        time.sleep(THREADS_LATE)
        run(self)

    threading.Thread.run = late  # type: ignore[method-assign]
    try:
        yield
    finally:
        threading.Thread.run = run  # type: ignore[method-assign]


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, list[Any]]:
    """Return copies of what a run consists of on this rank."""
    moments = [optimizer.state.get(p, {}) for p in model.parameters()]
    return {
        "weights": [_local(p) for p in model.parameters()],
        "gradients": [_local(p.grad) for p in model.parameters()],
        "buffers": [_local(buffer) for buffer in model.buffers()],
        "moments": [_local(of.get(name)) for of in moments for name in ("exp_avg", "exp_avg_sq")],
        "options": [
            value for group in optimizer.param_groups for key, value in sorted(group.items()) if key != "params"
        ],
        "modes": [layer.training for layer in model.modules()],
        "generator": [torch.get_rng_state()],
    }


def _local(tensor: Tensor | None) -> Tensor | None:
    """Return a copy of this rank's part."""
    if tensor is None:
        return None
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach().clone()


def _equal_parts(before: dict[str, list[Any]], after: dict[str, list[Any]]) -> dict[str, bool]:
    """Return which parts of two states are the same."""
    return {name: all(map(_equal, before[name], after[name])) for name in before}


def _other(same: dict[str, bool]) -> str:
    """Return the words for the parts that are not the same."""
    return " and ".join(WORDS[name] for name, equal in same.items() if not equal)


def _equal(a: Any, b: Any) -> bool:
    tensors = isinstance(a, Tensor) and isinstance(b, Tensor)
    return torch.equal(a, b) if tensors else type(a) is type(b) and a == b


def _files(folder: str) -> dict[str, int]:
    """Return the sizes of the files below a folder."""
    return {str(file.relative_to(folder)): file.stat().st_size for file in Path(folder).rglob("*") if file.is_file()}


def _options(optimizer: torch.optim.Optimizer) -> list[list[float]]:
    """Return each group's options, numbers alone: as many as there are in OPTIONS, with two betas."""
    rows = []
    for group in optimizer.param_groups:
        numbers = [group[name] for name in OPTIONS]
        rows.append([float(n) for entry in numbers for n in (entry if isinstance(entry, tuple | list) else (entry,))])
    return rows


def _temporary_files_beside(folder: str) -> None:
    """Let this rank's temporary files come where they are seen: beside the folder of its checkpoint."""
    tempfile.tempdir = str(Path(folder).parent)


def _saves(save: Callable[..., Any], load: Callable[..., Any], seed: int, folder: str) -> Evidence:
    """One of 4 ranks: two steps, a checkpoint, and two steps more; then another model goes on from it."""
    _temporary_files_beside(folder)
    model, optimizer = _fresh(seed)
    _train(model, optimizer, range(1))
    with _ended_threads():
        save(model, optimizer, 1, str(Path(folder).with_name(EARLIER)))  # must not stand in for the next one
    _train(model, optimizer, range(1, 2))
    _move_schedules(optimizer)
    before = _state(model, optimizer)
    with _ended_threads():
        with _Late() as sent, _late_threads():
            save(model, optimizer, LAST, folder)
        files = _files(folder)
    whole = sum(p.numel() * 4 for p in model.parameters())
    seen = {
        "kept": _equal_parts(before, _state(model, optimizer)),
        "sent": sum(call.nbytes for call in sent.calls if call.name in ("all_gather", "broadcast", "all_reduce")),
        "bytes": sum(files.values()),
        "largest": max(files.values(), default=0),
        "others": sorted(name for name in files if not name.endswith((".metadata", ".distcp"))),
        "whole": whole,
        "losses": _train(model, optimizer, STEPS),
    }
    dist.barrier()
    seen["later"] = _changed(files, _files(folder))
    inside = tuple(f"{name}{os.sep}" for name in (Path(folder).name, EARLIER))
    seen["beside"] = sorted(name for name in _files(str(Path(folder).parent)) if not name.startswith(inside))
    return seen | {"again": _goes_on(load, seed, folder, before)}


def _changed(before: dict[str, int], after: dict[str, int]) -> list[str]:
    """Return the names of files that have come, gone, or got another size."""
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def _saves_again(save: Callable[..., Any], load: Callable[..., Any], seed: int, folder: str, other: str) -> Evidence:
    """One of 2 ranks: another model takes up the checkpoint of four, is saved in a folder that exists, and goes on."""

    def then(model: nn.Module, optimizer: torch.optim.Optimizer) -> Evidence:
        with _ended_threads():
            save(model, optimizer, LATER, other)
        return {"more": _train(model, optimizer, MORE)}

    return _goes_on(load, seed, folder, then=then)


def _on_more_ranks(load: Callable[..., Any], seed: int, folder: str) -> Evidence:
    """One of 4 ranks, in two replicas: another model takes up the checkpoint of two."""
    return _goes_on(load, seed, folder, steps=MORE, shape=(2, 2))


def _goes_on(
    load: Callable[..., Any],
    seed: int,
    folder: str,
    saved: dict[str, list[Any]] | None = None,
    then: Callable[[nn.Module, torch.optim.Optimizer], Evidence] | None = None,
    steps: range = STEPS,
    shape: tuple[int, ...] = (),
) -> Evidence:
    """One rank: another model takes up the checkpoint; `saved` is what this rank had then, on as many ranks."""
    _temporary_files_beside(folder)
    model, optimizer = _fresh(seed + 1, shape)
    files = _files(folder)
    dist.barrier()
    draws = torch.get_rng_state()
    with _Watched(model) as sent:
        step = load(model, optimizer, folder)
    volume = sum(call.nbytes for call in sent.calls if call.name in ("all_gather", "broadcast", "all_reduce"))
    dist.barrier()
    same = _equal_parts(saved, _state(model, optimizer)) if saved else {}
    seen = {
        "step": step if isinstance(step, int) else type(step).__name__,
        "changed": _changed(files, _files(folder)),
        "draws": torch.equal(draws, torch.get_rng_state()),
        "gradients": any(p.grad is not None for p in model.parameters()),
        "options": _options(optimizer),
        "whole": [list(size) for size in sorted(sent.whole)],
        "same": {name: equal for name, equal in same.items() if name in COMES_BACK},
        "losses": _train(model, optimizer, steps),
        "sent": volume,
    }
    return seen | (then(model, optimizer) if then else {})


def _wrong_options(got: list[list[float]], want: list[list[float]]) -> str | None:
    """Say which of the optimizer's options are not those that were saved."""
    names = ("lr", "beta1", "beta2", "eps", "weight_decay")
    for group, (mine, right) in enumerate(zip(got, want, strict=True)):
        for name, a, b in zip(names, mine, right, strict=True):
            if a != b:
                return (
                    f"{name} of the optimizer's parameter group {group} is {a!r}; {b!r} was saved. Schedules change "
                    "options, each group's own: take all of them from the checkpoint."
                )
    return None


class _OnRun(Check):
    points = 1

    @staticmethod
    def probe(seed: int, save: Any, load: Any) -> Evidence:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
            folder, other = (Path(scratch) / name for name in ("checkpoint", "another"))
            other.mkdir()
            ranks = on_ranks(_saves, 4, save, load, seed, str(folder))
            pair = on_ranks(_saves_again, 2, save, load, seed, str(folder), str(other))
            return {"four": ranks, "two": pair, "more": on_ranks(_on_more_ranks, 4, load, seed, str(other))}


class GoesOnWithEqualLosses(_OnRun):
    """On 4 ranks, on 2, and on 4 again, training continues with the same losses as the uninterrupted run."""

    hint = (
        "dcp.load fills tensors that exist. Does a fresh AdamW have any?\n"
        "get_state_dict and set_state_dict take the model and the optimizer together; the step is one more entry."
    )

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        right, more = expected["four"][0]["losses"], expected["two"][0]["more"]
        for rank, got in enumerate(seen["four"]):
            if _other(got["kept"]):
                return f"rank {rank}: save changes {_other(got['kept'])}. Leave the run as it is."
            if got["later"]:
                return (
                    f"rank {rank}: {got['later'][0]} still changes after save has returned on this rank. Wait until "
                    "each rank has written its files: a barrier, or the result of an asynchronous save."
                )
        for step, (a, b) in enumerate(zip(seen["four"][0]["losses"], right, strict=True), 1):
            if not abs(a - b) <= EXACT * abs(b):
                return f"after save, the loss of step {step} is {a:.6f}, without it {b:.6f}. What does save change?"
        runs = {
            "4 ranks": ([one["again"] for one in seen["four"]], LAST, right),
            "2 ranks": (seen["two"], LAST, right),
            "saved on 2 ranks, loaded on 2 x 2": (seen["more"], LATER, more),
        }
        for which, (ranks, saved, losses) in runs.items():
            for rank, got in enumerate(ranks):
                if got["step"] != saved:
                    return f"{which}: load returns {got['step']} on rank {rank}; {saved} was saved."
                if got["changed"]:
                    changed = got["changed"][0]
                    return f"{which}: load changes the checkpoint, namely {changed}. Leave it as it is."
                if not got["draws"]:
                    return f"{which}: load changes the random generator's state on rank {rank}. Leave it as it is."
                if got["gradients"]:
                    return f"{which}: load leaves gradients on rank {rank}. Leave none, not even zeros."
                wrong = _wrong_options(got["options"], expected["two"][0]["options"])
                if wrong:
                    return f"{which}: after load, {wrong}"
                for step, (a, b) in enumerate(zip(got["losses"], losses, strict=True), 1):
                    if not abs(a - b) <= EXACT * abs(b):
                        return (
                            f"{which}: the loss of step {step} after the checkpoint is {a:.6f}; uninterrupted it "
                            f"is {b:.6f}. (If only moments or the learning rate are wrong, step 1 is right.)"
                        )
        for rank, got in enumerate(seen["four"]):
            other = _other(got["again"]["same"])
            if other:
                return f"rank {rank}: after load, {other} are not bit for bit what they were when save was called."
        return None


class EachRankWritesItsShards(_OnRun):
    """Every rank writes its own shards; no whole parameter is sent, and nothing is written twice."""

    hint = (
        "A state dict of DTensors knows which part is this rank's, and dcp.save writes this part.\n"
        "full_tensor() and full_state_dict=True gather what no rank has room for."
    )

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for rank, (got, want) in enumerate(zip(seen["four"], expected["four"], strict=True)):
            if got["sent"] > want["sent"] + got["whole"] / 4:
                return (
                    f"rank {rank}: {got['sent']:,} bytes of tensors are sent while the ranks save. Which call gathers "
                    "parameters?"
                )
            if got["again"]["sent"] > want["again"]["sent"] + got["whole"] / 4:
                return (
                    f"rank {rank}: {got['again']['sent']:,} bytes of tensors are sent while the ranks load. Which call "
                    "gathers parameters?"
                )
            if got["again"]["whole"]:
                size = " x ".join(map(str, got["again"]["whole"][0]))
                return (
                    f"rank {rank}: while it loads, it makes a tensor of {size}, as large as a whole parameter. Does "
                    "each rank read whole parameters, of which it keeps a part?"
                )
            if got["others"]:
                return (
                    f"{got['others'][0]} is not a file of torch.distributed.checkpoint, which should write everything."
                )
            if got["beside"]:
                return (
                    f"save leaves {got['beside'][0]} beside the checkpoint's folder, or among temporary files. All "
                    "that training needs belongs in the folder, and torch.distributed.checkpoint writes it."
                )
            if got["bytes"] > 3 * got["whole"] + NOTES:
                return (
                    f"the checkpoint takes {got['bytes']:,} bytes; weights and two moments take {3 * got['whole']:,}."
                )
            if got["largest"] > got["whole"] + NOTES:  # a quarter of three is less than that, also rounded up
                return f"one file has {got['largest']:,} bytes; each of the 4 ranks should write its quarter."
        return None


RESUME = (GoesOnWithEqualLosses, EachRankWritesItsShards)
