"""An open rung: any recipe that trains the ladder's model within a room, to a loss on images that it never sees.

The recipe gets a model and, update by update, its batches; everything else is the check's: the order of the images, the
meter, the images held out, and a fresh model that the trained weights are loaded into. What digit a label stands for is
drawn anew for each seed, so that nothing learned elsewhere helps.
"""

import functools
import gc
import itertools
import math
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.device import pick_device
from ...core.models import ViT
from ...core.units import KiB, human_bytes
from ...meter.operation import op_at
from ...meter.profile import MemoryProfile
from ...meter.recorder import MemoryMeter
from ..base import Check, Evidence
from ..probing.files_opened import files_opened
from .ladder_task import LadderTask, Rung

# The peak of an update: weights, state, gradients, activations, batch. CUDA's allocator rounds each up to 512 bytes.
ROOM, ROOM_CUDA = 284 * KiB, 320 * KiB
LOSS = 1.1  # on the images held out; rates ten times too high or low end above 1.5, the reference at about 0.8
BATCH, UPDATES, A_FEW = 64, 24, 4  # images in an update; to reach the loss; to see how an update goes about it
OUTSIDE, LARGE = 32 * KiB, 4 * KiB  # what Python and NumPy may keep beside tensors; smaller blocks are not counted


@dataclass(frozen=True)
class RungResult:
    """What a recipe achieved.

    Attributes:
        device: where it ran: "cpu", "cuda" or "mps".
        peak_bytes: of an update, by the meter, without what a kernel takes and frees itself, which differs between
            CPUs; and what tensors hold beside it that the update did not touch.
        outside_bytes: that Python and NumPy keep beside tensors, in blocks of 4 KiB or more.
        files: names of files that two updates opened to write to.
        loss: mean cross entropy on the images held out; NaN where the weights do not fit the model.
        changed: names of parameters that are missing, new, or of another shape.
        unseen, foreign: the most images of a batch that did not go through the model, and the most rows from elsewhere.
        moved: the most changes of the weights between the micro-batches of one update.
    """

    device: str
    peak_bytes: int
    outside_bytes: int
    files: list[str]
    loss: float
    changed: list[str]
    unseen: int
    foreign: int
    moved: int


def run_open_rung(
    prepare: Callable[..., Any], update: Callable[..., Any], seed: int = 0, updates: int = UPDATES
) -> RungResult:
    """Train with a recipe and measure it; what was just run is not run again.

    Args:
        prepare: takes the model (FP32), may change it in place; returns what `update` needs.
        update: takes the model, what `prepare` returned, x (64, 1, 8, 8) and y (64,) in NumPy, and the progress, from
            0 at the first update to 1 at the last.
        seed: of the weights, the order of the images, the meaning of the labels, and the update that is metered.
        updates: how many, four or more.
    """
    return _run(prepare, update, seed, updates)


@functools.lru_cache(maxsize=2)  # several checks, and the lab after them, ask for the same run
def _run(prepare: Callable[..., Any], update: Callable[..., Any], seed: int, updates: int) -> RungResult:
    task, where = LadderTask(BATCH), pick_device()
    labels = np.random.default_rng(seed).permutation(10)[task.labels]
    tensors = {id(t) for t in _tensors_alive()}
    quarter = updates // 4
    model, metered = task.model(Rung(""), seed, where), int(np.random.default_rng(seed).integers(quarter, 3 * quarter))
    shapes = {name: list(p.shape) for name, p in model.named_parameters()}
    state, seen, unseen, foreign, moved, peak = prepare(model), _Seen([], []), 0, 0, 0, 0
    hook = model.register_forward_pre_hook(seen.note)
    for number, rows in enumerate(_batches(task, seed, updates)):
        given = model, state, task.images[rows], labels[rows], number / (updates - 1)
        if number == metered:
            hook.remove()  # what it copies would be counted
            with MemoryMeter(model) as meter:
                update(*given)
            held = sum(t.untyped_storage().nbytes() for t in _tensors_alive() if id(t) not in tensors)
            counted = sum(meter.stages[-1].held_after.values())  # of these, what the update touched
            peak = _peak_without_scratch(meter) + max(0, held - counted)
            hook = model.register_forward_pre_hook(seen.note)
        else:
            update(*given)
            misses, others = _compare(seen.images, task.images[rows])
            unseen, foreign, moved = max(unseen, misses), max(foreign, others), max(moved, seen.moved)
        seen.images.clear()
        seen.weights.clear()
    hook.remove()
    now = {name: list(p.shape) for name, p in model.named_parameters()}
    changed = sorted(name for name in shapes | now if shapes.get(name) != now.get(name))
    loss = math.nan if changed else _held_out_loss(task, model, labels)
    outside, files = _kept_outside(task, labels, prepare, update)
    return RungResult(where.type, peak, outside, files, loss, changed, unseen, foreign, moved)


def _peak_without_scratch(profile: MemoryProfile) -> int:
    """Return the peak in bytes, without memory that one operation takes and gives back before it ends."""
    changes = []
    for life in profile.lifetimes:
        within = life.end is not None and op_at(profile.ops, life.end) is op_at(profile.ops, life.start)
        if not (life.category == "kernel workspace" and within):
            changes += [(life.start, life.nbytes)] + [(life.end, -life.nbytes)] * (life.end is not None)
    return max(itertools.accumulate(delta for _, delta in sorted(changes, key=lambda change: change[0])))


def _batches(task: LadderTask, seed: int, updates: int) -> Iterator[np.ndarray]:
    order, each = np.random.default_rng(seed + 1), task.trained // task.batch
    epochs = (np.split(order.permutation(task.trained), each) for _ in range(-(-updates // each)))
    yield from itertools.islice(itertools.chain.from_iterable(epochs), updates)


@dataclass(frozen=True)
class _Seen:
    """What goes through a model in an update with gradients on: the images, and a norm of the weights that see them.

    It is kept in NumPy and in plain numbers, not in tensors, which would be counted.
    """

    images: list[np.ndarray]
    weights: list[float]

    def note(self, module: nn.Module, given: tuple[Tensor, ...]) -> None:
        """Hook before a forward pass."""
        if torch.is_grad_enabled():
            self.images.append(given[0].detach().float().cpu().numpy().reshape(len(given[0]), -1))
            self.weights.append(sum(float(p.detach().cpu().double().norm()) for p in module.parameters()))

    @property
    def moved(self) -> int:
        """How often the weights changed from one micro-batch to the next."""
        return sum(a != b for a, b in itertools.pairwise(self.weights))


def _compare(seen: list[np.ndarray], images: np.ndarray) -> tuple[int, int]:
    """Return how many of `images` are not among those seen, and how many of those seen are none of them."""
    if not seen:
        return len(images), 0
    rows, batch = (torch.from_numpy(a) for a in (np.concatenate(seen), images.reshape(len(images), -1)))
    if rows.shape[1] != batch.shape[1]:
        return len(images), len(rows)
    near = torch.cdist(rows, batch) <= 0.02 * batch.norm(dim=1)  # BF16 rounds by 0.4 % at most
    return int((~near.any(0)).sum()), int((~near.any(1)).sum())


def _tensors_alive() -> list[Tensor]:
    """Return one tensor for each storage that Python holds a tensor of."""
    gc.collect()
    alive = {t.untyped_storage().data_ptr(): t for t in gc.get_objects() if issubclass(type(t), Tensor) and _real(t)}
    return list(alive.values())


def _real(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and tensor.device.type != "meta" and type(tensor) in (Tensor, nn.Parameter)


def _held_out_loss(task: LadderTask, model: nn.Module, labels: np.ndarray) -> float:
    """Load the weights into a fresh model in FP32; return its mean loss on the images held out."""
    judge = ViT(**task.shape)
    judge.load_state_dict({name: p.detach().float().cpu() for name, p in model.named_parameters()})
    with torch.no_grad():
        logits = judge(torch.from_numpy(task.images[task.trained :]))
    return float(F.cross_entropy(logits, torch.from_numpy(labels[task.trained :])))


def _kept_outside(
    task: LadderTask, labels: np.ndarray, prepare: Callable[..., Any], update: Callable[..., Any]
) -> tuple[int, list[str]]:
    """Return what two updates of another model keep: bytes of large blocks in Python and NumPy, and files."""
    model = task.model(Rung(""), 1, pick_device())
    batches = list(_batches(task, 1, 2))
    gc.collect()
    tracemalloc.start()
    try:
        with files_opened() as files:
            state = prepare(model)
            for number, rows in enumerate(batches):
                update(model, state, task.images[rows], labels[rows], float(number))
        gc.collect()
        large = sum(trace.size for trace in tracemalloc.take_snapshot().traces if trace.size >= LARGE)
        return large, sorted(set(files))
    finally:
        tracemalloc.stop()


class _OpenRung(Check):
    """What the checks of how an update goes about it share: one short run, from which each judges one figure."""

    compared = False

    @staticmethod
    def probe(seed: int, prepare: Callable[..., Any], update: Callable[..., Any]) -> Evidence:
        return vars(run_open_rung(prepare, update, seed, A_FEW)).copy()


class KeepsTheModel(_OpenRung):
    """The parameters keep their names and shapes; their dtype is yours to choose."""

    hint = "model.to(dtype) and a checkpointed forward keep names and shapes. Anything else is another model."

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        names = [str(name) for name in seen["changed"]]
        if names:
            return f"{len(names)} parameters are missing, new, or of a different shape, for example {names[0]!r}."
        return None


class SeesEachImage(_OpenRung):
    """In every update all 64 images, unchanged, and no others go through the model with gradients on."""

    hint = (
        "The effective batch is fixed; the size of a micro-batch is not.\n"
        "Split x and y into micro-batches and leave none out. For each: model(...), loss, backward."
    )

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["unseen"]:
            return f"In one update {seen['unseen']} of the 64 images did not go through model(...) with gradients on."
        if seen["foreign"]:
            return f"In one update {seen['foreign']} rows that are not images of the batch went through the model."
        return None


class MakesOneUpdate(_OpenRung):
    """The weights change once per update, after its last micro-batch: all micro-batches see the same weights."""

    hint = "A step after every micro-batch is a different training run (section 1). Add up first, then step once."

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["moved"]:
            return (
                f"In one update, the weights changed {seen['moved']} times before the last micro-batch. They should "
                "change once, after the last micro-batch."
            )
        return None


class StaysWithinTheRoom(_OpenRung):
    """The peak of an update, including what is kept between updates, is at most 284 KiB (320 on CUDA)."""

    hint = (
        "Weights in FP32 take 203 KiB, and in BF16 half of that. What else takes bytes per parameter?\n"
        "Fold gradients into a mean (section 2). Then halve the micro-batches until the activations are small.\n"
        "That leaves the generator's state, and FP32 temporaries as large as the largest weight. Round a weight in "
        "parts."
    )

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        room = ROOM_CUDA if seen["device"] == "cuda" else ROOM
        if not 0 < seen["peak_bytes"] <= room:
            peak = f"The peak is {human_bytes(seen['peak_bytes'])}; at most {human_bytes(room)} are allowed."
            return f"{peak} Measure an update with MemoryMeter(model): which category holds the most?"
        return None


class KeepsNothingElsewhere(_OpenRung):
    """Nothing is kept outside tensors on the device: no copy in NumPy, no bytes, no file."""

    hint = "A master copy of the weights counts, wherever you keep it. Can stochastic rounding do without one?"

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not seen["outside_bytes"] <= OUTSIDE:
            kept = human_bytes(seen["outside_bytes"])
            return (
                f"After two updates Python and NumPy keep {kept} outside tensors; the limit is {human_bytes(OUTSIDE)}."
            )
        files = [str(name) for name in seen["files"]]
        if files:
            return f"Updates write to files: {len(files)}, for example {files[0]!r}. A copy in a file counts, too."
        return None


class ReachesTheLoss(Check):
    """After 24 updates the loss on images that you never see is at most 1.1."""

    hint = (
        "Try learning rates on a part of the training images, as section 2 does. AdamW's best rate may not suit "
        "Signum.\n"
        "Warm up, then let the rate fall to zero: `progress` runs from 0 to 1.\n"
        "In BF16, a step smaller than half a unit in the last place is lost. Section 2 shows whether this matters here."
    )

    compared = False

    @staticmethod
    def probe(seed: int, prepare: Callable[..., Any], update: Callable[..., Any]) -> Evidence:
        return vars(run_open_rung(prepare, update, seed)).copy()

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        # As in the short run, so in the long one.
        for check in (KeepsTheModel, SeesEachImage, MakesOneUpdate, StaysWithinTheRoom):
            broken = check.judge(seen, expected)
            if broken:
                return f"In a run of {UPDATES} updates: {broken}"
        if not seen["loss"] <= LOSS:
            too_high = f"The loss on the held-out images is {seen['loss']:.3f}; it should be at most {LOSS}."
            return f"{too_high} Is the learning rate too high, or too low?"
        return None


OPEN_RUNG = (KeepsTheModel, SeesEachImage, MakesOneUpdate, StaysWithinTheRoom, KeepsNothingElsewhere, ReachesTheLoss)
