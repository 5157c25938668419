"""The memory of a pipeline rank through a step: what its stages hold, and what each action adds for a while.

A stage was run alone. Here its actions are put in the order of the schedule: a forward pass leaves the activations of
one more micro-batch, a backward pass frees them, and while an action runs it takes as much more as it took alone.

Where the backward pass is split, nothing is freed by its first half, and the gradient of every product's result (and
every norm's) is kept as well: the weights' gradients are made of them.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from ...core.units import MiB
from ...meter.work import Work
from ...pipelines.play import FOR_INPUT, FOR_WEIGHTS, FORWARD, Pass
from ..catalog.gpus import Gpu
from . import stage_run as runs
from .layout import Layout
from .stage_run import StageKind, StageRun
from .trace import BUFFERS, Place

Held = Counter[str]
WAITING = "gradients that wait"
_BUCKET = 500_000_000  # elements: `reduce_bucket_size` in DeepSpeed's runtime/zero/config.py
OF_WEIGHTS = ("gradients", "activations")  # which the weights' half of a backward pass makes, and frees


@dataclass
class RankMemory:
    """The fullest moment of a rank.

    Attributes:
        peak: bytes by category then.
        at: the action, and the place in it.
        in_flight: the most micro-batches whose activations it held at once, over all its stages.
        apart: bytes of the update's temporary tensors that are larger than any segment that the passes have left.
    """

    peak: Held
    at: str
    in_flight: int
    apart: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the peak."""
        return self.peak.total()


def rank_memory(layout: Layout, order: Sequence[Pass], stages: Mapping[int, StageRun]) -> RankMemory:
    """Return the fullest moment of a rank whose actions are `order` and whose stages did `stages` alone."""
    held: Held = Counter()
    for stage in stages.values():
        held += next(iter(stage.actions.values()))[-1].end  # what is there before the step: weights and state
    passes: dict[tuple[int, runs.ActionKey, str], _Passed] = {}
    done = []
    for action in order:
        key = action_key(layout, action)
        if action.kind == FOR_INPUT and layout.zero == "zero3" and layout.micro_batches > 2:
            key = runs.BACKWARD, runs.NEXT  # gradients are reduced in the other half of the last
        known = (action.stage, key, action.kind)
        if known not in passes:
            passes[known] = _passed(layout, action.kind, stages[action.stage].actions[key])
        done.append(passes[known])
    # Totals find the fullest moment; only there it is asked who holds them.
    now = most = held.total()
    fullest, in_flight, most_in_flight = -1, 0, 0
    for at, (action, each) in enumerate(zip(order, done, strict=True)):
        if now + each.more > most:
            fullest, most = at, now + each.more
        now += each.grows
        in_flight += (action.kind == FORWARD) - (action.kind not in (FORWARD, FOR_INPUT))
        most_in_flight = max(most_in_flight, in_flight)
    result = RankMemory(held, "between steps", most_in_flight)
    if fullest >= 0:
        action, each = order[fullest], done[fullest]
        result.peak = _moved(_after(held, done[:fullest]), each.before, each.fullest.peak)
        result.at = f"{action.kind}{action.micro_batch} of stage {action.stage}, {each.fullest.name}"
    held = _after(held, done)
    for number, stage in stages.items():
        update = _passed(layout, "", stage.actions[runs.UPDATE, ""])
        if held.total() + update.more > result.nbytes:
            result.peak = _moved(held, update.before, update.fullest.peak)
            result.at = f"update of stage {number}, {update.fullest.name}"
    return result


def add_workspaces(rank: RankMemory, layout: Layout, gpu: Gpu) -> None:
    """Add what matmuls of Transformer Engine have as scratch memory on `gpu`, from the first step on.

    PyTorch gives cuBLAS a workspace for each of two threads; Transformer Engine has one of its own: 32 MiB from Hopper
    on, else 4 (`get_cublas_workspace_size_bytes` in its repository). Its grouped matmuls run on four streams, each with
    a workspace of that size (`get_multi_stream_cublas_workspace`); all-to-all's experts are multiplied so. Megatron's
    own experts have a router that takes Transformer Engine's matmul (`RouterGatingLinearFunction` in its moe_utils.py).
    """
    large = (gpu.capability or (0, 0)) >= (9, 0)
    each = 32 * MiB if layout.large_workspace else gpu.cublas_workspace or 0
    own = 0 if layout.own_modules and layout.dispatcher != "all-gather" else (32 if large else 4) * MiB
    sends = layout.arch.experts > 0 and layout.dispatcher == "all-to-all"
    grouped = 4 * own if layout.grouped_experts or sends else 0
    rank.peak["kernel workspace"] += 2 * each + own + grouped


def add_update_of_deepspeed(rank: RankMemory, layout: Layout, stages: Iterable[StageRun]) -> None:
    """Add what DeepSpeed takes for an update after the last pass: long vectors, for which the allocator asks anew.

    BF16: all gradients once more in 16 bits, which is what data ranks send (`allreduce_bucket` and
    `communication_data_type` in its runtime/engine.py). FP16: the bucket of 5e8 elements, and a rank's share of the
    gradients in 16 bits and in 32 (`reduce_gradients` and `step` in its runtime/zero/stage_1_and_2.py). FP16 of which
    nothing is sharded: all gradients in 32 bits, one by one and once more as a vector (`step` in its
    runtime/fp16/fused_optimizer.py).
    """
    parameters = sum(stage.parameters + stage.expert_parameters for stage in stages)
    if not layout.narrow_gradients:
        rank.apart = 2 * parameters if layout.data > 1 else 0
    elif layout.zero != "none":
        rank.apart = 2 * _BUCKET + (2 + 4) * parameters // layout.shards
    else:
        rank.apart = (4 + 4) * parameters


def share_dummies(rank: RankMemory, layout: Layout, kinds: Sequence[StageKind]) -> None:
    """Count dummies of weights' gradients once in a rank whose stages are `kinds`: each was run with its own."""
    shapes = [runs.dummy_shapes(layout, kind) for kind in kinds]
    counted = sum(runs.dummy_bytes(layout, each) for each in shapes)
    rank.peak["gradients"] -= counted - runs.dummy_bytes(layout, set().union(*shapes))


def add_standing(rank: RankMemory, layout: Layout, number: int) -> None:
    """Add what Megatron's pipeline rank `number` holds between its passes besides weights, state and activations.

    These are the buffer of its own layers (`GlobalMemoryBuffer`: what tensor or expert ranks gather, the scores of
    attention), the input of the pass before and its gradient, which the schedule's variables hold until the next pass
    has ended, and the logits' gradients whose products wait for the end of the step.
    """
    arch, size = layout.arch, 4 if layout.precision == "fp32" else 2
    tokens = layout.micro_batch_size * layout.local_seq
    last = number == layout.pipeline - 1
    gathers = layout.splits_tokens and (last or layout.own_modules)
    buffer = tokens * arch.hidden if gathers else 0
    if layout.dispatcher == "all-gather":  # the tokens of the expert group, which has `tensor` parts of each sequence
        group = layout.expert * layout.expert_tensor
        buffer = max(buffer, tokens * arch.hidden * group // layout.tensor if group > 1 else 0)
    if layout.own_modules:
        buffer = max(buffer, tokens * layout.seq * arch.heads // layout.tensor)
    rank.peak[BUFFERS] += buffer * size
    if number:
        rank.peak[BUFFERS] += 2 * tokens * arch.hidden * size // (layout.tensor if layout.splits_tokens else 1)
    if last and layout.deferred_logits:
        # The norm's output waits, too, and its graph: that ends in the stage's input, which holds its gradient.
        ends = 2 * arch.hidden // (layout.tensor if layout.splits_tokens else 1) if number else 0
        kept = layout.micro_batches - 1
        kept = kept if layout.deferred_logits < 0 else min(layout.deferred_logits, kept)
        if layout.head_dummy and layout.wgrad_fusion:
            rank.peak["gradients"] += -(-arch.vocab // layout.tensor) * arch.hidden * size
        rank.peak[WAITING] += kept * tokens * (-(-arch.vocab // layout.tensor) + arch.hidden + ends) * size


def _after(held: Held, done: "Sequence[_Passed]") -> Held:
    """Return what is held when all of `done` is; actions that are alike change it alike."""
    result = held.copy()
    for each, times in Counter(done).items():
        for category in {*each.before, *each.after}:
            result[category] += times * (each.after[category] - each.before[category])
    return result


def action_key(layout: Layout, action: Pass) -> runs.ActionKey:
    """Return under which name the run of a stage has what `action` does."""
    kind = runs.FORWARD if action.kind == FORWARD else runs.BACKWARD
    last = layout.micro_batches - 1
    which = runs.LAST if action.micro_batch == last else runs.FIRST if action.micro_batch == 0 else runs.NEXT
    return kind, which


@dataclass(frozen=True, eq=False)
class _Passed:
    """What an action holds by itself: before, after, and in its fullest place, `more` bytes more than before."""

    before: Held
    after: Held
    fullest: Place
    more: int

    @cached_property
    def grows(self) -> int:
        """Bytes by which it leaves more than it found."""
        return self.after.total() - self.before.total()


def _passed(layout: Layout, kind: str, places: Sequence[Place]) -> _Passed:
    before, after = places[0].start, places[-1].end
    if kind in (FOR_INPUT, FOR_WEIGHTS):
        between = before + waiting_gradients(layout, places)
        if kind == FOR_WEIGHTS:
            return _Passed(between, after, places[0], 0)
        places, after = first_half(layout, places), between
    # A repeated block has no figures of its own: its neighbors hold as much.
    fullest = max((place for place in places if place.peak), key=lambda place: place.peak.total())
    return _Passed(before, after, fullest, fullest.peak.total() - before.total())


def first_half(layout: Layout, places: Sequence[Place]) -> list[Place]:
    """Return places as they are while weights' gradients are not made, and what they need is not freed."""
    kept = {category: places[0].start[category] for category in OF_WEIGHTS}
    waiting: Held = Counter()
    halves = []
    for place in places:
        waiting = waiting + waiting_gradients(layout, [place])
        halves.append(replace(place, peak=place.peak and Counter({**place.peak, **kept}) + waiting))
    return halves


def waiting_gradients(layout: Layout, places: Sequence[Place]) -> Held:
    """Return the bytes of the gradients that wait for the weights' half of a backward pass."""
    tokens = layout.micro_batch_size * layout.local_seq // (layout.tensor if layout.splits_tokens else 1)
    stream = layout.arch.hidden * tokens * (4 if layout.precision == "fp32" else 2)
    nbytes = 0
    for place in places:
        products = [event for event in place.events if isinstance(event, Work) and event.layout == "tn"]
        nbytes += sum(math.prod(p.shape) // p.shape[-2] * getattr(torch, p.dtype).itemsize for p in products)
        norms = 2 if place.name.startswith("layer") else bool(place.events)  # in a block; before the head
        nbytes += norms * stream
    return Counter({WAITING: nbytes})


def _moved(held: Held, start: Held, end: Held) -> Held:
    """Return `held` changed as from `start` to `end`."""
    return Counter({category: held[category] + end[category] - start[category] for category in {*held, *start, *end}})
