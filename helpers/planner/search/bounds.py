"""Bounds: the seconds and the bytes that a layout needs at least, without running it.

A rank of a pipeline waits until the first micro-batch has come to it, is busy with all of them, and then the last
gradients must go back; that holds in any order of the schedule. What a rank holds at least are its weights, gradients
and state, and what the micro-batches keep that the schedule starts before the first one ends.

A bound is made twice: from a block's sizes, for every layout; and, where that leaves a layout in the race, from a block
that was run (`probe.py`), which is closer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate

from ..catalog.clusters import Cluster
from ..catalog.layout_rates import layout_rates
from ..layout.chip import Chip
from ..layout.layout import Layout
from ..layout.links import Link, Links
from ..layout.stage_run import StageRun
from ..layout.streams import Streams
from .block_cost import BlockCost, BlockCosts
from .in_flight import in_flight
from .probe import Probed, probed

SAFE = 1 - 1e-6  # sums in another order round otherwise


@dataclass(frozen=True)
class Bound:
    """What a layout needs at least."""

    seconds: float
    nbytes: float


Probe = Mapping[bool, StageRun]


@dataclass(frozen=True)
class _Blocks:
    """Costs of a layout's parts, sums over the first blocks, and seconds of a message to the next stage."""

    first: BlockCost
    last: BlockCost
    block: BlockCost
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    kept: tuple[float, ...]
    dense: tuple[int, ...]
    experts: tuple[int, ...]
    message: float
    closer: bool


class Bounds:
    """Bounds of layouts on a cluster; what layouts have in common is counted once."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._rates = cluster, layout_rates()
        self._known: dict[tuple, _Blocks] = {}
        self._shards: dict[tuple, Link] = {}
        self._chips: dict[tuple[bool, str], Chip] = {}

    def of(self, layout: Layout, probe: Probe | None = None) -> Bound:
        """Return what `layout` needs at least; closer with the probe that it asks for."""
        return Bound(self.seconds(layout, probe), self.nbytes(layout, probe))

    def seconds(self, layout: Layout, probe: Probe | None = None) -> float:
        """Return the seconds that a step of `layout` takes at least."""
        parts, ends = self._parts(layout, probe), _ends(layout)
        ranks = (0, layout.pipeline - 1) if layout.pipeline > 1 else (0,)
        return max(self._seconds(layout, parts, ends, rank) for rank in ranks) * SAFE

    def nbytes(self, layout: Layout, probe: Probe | None = None) -> float:
        """Return the bytes that the fullest rank of `layout` holds at least."""
        parts, ends = self._parts(layout, probe), _ends(layout)
        ranks = (0, layout.pipeline - 1) if layout.pipeline > 1 else (0,)
        return max(_nbytes(layout, parts, ends, rank) for rank in ranks) * SAFE

    def _seconds(self, layout: Layout, parts: _Blocks, ends: list[int], rank: int) -> float:
        stages = range(rank, len(ends) - 1, layout.pipeline)
        busy_forward = sum(parts.forward[ends[s + 1]] - parts.forward[ends[s]] for s in stages)
        busy_backward = sum(parts.backward[ends[s + 1]] - parts.backward[ends[s]] for s in stages)
        first, last = rank == 0, rank == layout.pipeline - 1
        busy_forward += parts.first.forward * first + parts.last.forward * last
        busy_backward += parts.first.backward * first + parts.last.backward * last
        if layout.zero == "zero3":
            blocks = [(ends[s], ends[s + 1]) for s in stages]
            ends_of = (parts.first.dense * first, parts.last.dense * last)
            busy_forward, busy_backward = self._sharded(layout, parts, (blocks, ends_of), (busy_forward, busy_backward))
        busy = layout.micro_batches * (busy_forward + busy_backward)
        before = parts.forward[ends[rank]] + (parts.first.forward if rank else 0.0) + rank * parts.message
        after = parts.backward[ends[rank]] + (parts.first.backward if rank else 0.0) + rank * parts.message
        return before + busy + (0.0 if layout.splits_backward else after)

    def _sharded(
        self,
        layout: Layout,
        parts: _Blocks,
        held: tuple[list[tuple[int, int]], tuple[int, int]],
        busy: tuple[float, float],
    ) -> tuple[float, float]:
        """Return the seconds of both passes if parameters are gathered, copied out, and their gradients reduced.

        In a pipeline, what was gathered backward stays until the last micro-batch, and gradients are added up.
        """
        chip, link = self._chip(layout), self._shard_link(layout)
        blocks, ends = held
        number = sum(end - begin for begin, end in blocks)
        parameters = sum(parts.dense[end] - parts.dense[begin] for begin, end in blocks)
        low, wide = (4, 4) if layout.precision == "fp32" else (2, 2 if layout.precision == "bf16" else 4)
        gather = number * link.seconds("all-gather", low * parameters / number)
        reduce = number * link.seconds("reduce-scatter", wide * parameters / number)
        copy = chip.passing_seconds(low * parameters)
        forward, backward = busy
        again, count = layout.reshard_after_forward, layout.micro_batches
        out, into, add = 2.0, 3.0, 4.0
        if low != wide:  # shards are cast before they are gathered; gradients as they are copied in, or added in FP32
            out, add = 2.0 + 3.0 / layout.shards, 5.0
            copy_ends = chip.passing_seconds(low * sum(ends))
            forward, backward = forward + (out * copy_ends if again else 0.0), backward + into * copy_ends
        if layout.pipeline == 1:
            back = max(backward + (out * again + into) * copy, reduce + (gather if again else 0.0))
            return max(forward + out * copy, gather), back
        adding = add * copy * (count - 1) / count
        return (max(forward + out * copy, gather) if again else forward), backward + adding

    def _chip(self, layout: Layout) -> Chip:
        key = layout.compile, layout.attention, layout.engine
        if key not in self._chips:
            self._chips[key] = Chip(self._cluster.gpu, self._rates, layout, casts_weights=False)
        return self._chips[key]

    def _shard_link(self, layout: Layout) -> Link:
        key = layout.tensor, layout.shards
        if key not in self._shards:
            self._shards[key] = Links(layout, self._cluster, self._rates)["shard"]
        return self._shards[key]

    def _parts(self, layout: Layout, probe: Probe | None) -> _Blocks:
        key = (
            *(layout.tensor, layout.pipeline, layout.context, layout.context_method, layout.expert),
            *(layout.micro_batch_size, layout.recompute, layout.engine, layout.ranks, probe is None),
            *(layout.splits_backward, layout.tensor_overlap),
        )
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._count(layout, probe)
        return known

    def _count(self, layout: Layout, probe: Probe | None) -> _Blocks:
        links = Links(layout, self._cluster, self._rates)
        chip = self._chip(layout)
        costs = BlockCosts(layout, chip, links)
        arch = layout.arch
        kinds = {mixed: costs.block(mixed) for mixed in {arch.is_moe(layer) for layer in (0, arch.layers - 1)}}
        if probe is not None:
            low = "float8_e4m3fn" if layout.precision == "fp8" else ""
            streams = Streams(chip, links, low, launch=0.0, overlap=layout.tensor_overlap)
            kinds = {mixed: _closer(cost, probed(probe[mixed], streams, layout)) for mixed, cost in kinds.items()}
        blocks = [kinds[arch.is_moe(layer)] for layer in range(arch.layers)]
        sums = {
            name: tuple(accumulate((getattr(block, name) for block in blocks), initial=0))
            for name in ("forward", "backward", "kept", "dense", "experts")
        }
        message = links["pipeline"].seconds("send", costs.own_bytes) if layout.pipeline > 1 else 0.0
        block = replace(
            blocks[0],
            working=min(b.working for b in kinds.values()),
            waiting=min(b.waiting for b in kinds.values()),
            less=max(b.less for b in kinds.values()),
        )
        return _Blocks(costs.embedding(), costs.head(), block, **sums, message=message, closer=probe is not None)


def _closer(cost: BlockCost, probe: Probed) -> BlockCost:
    """Return a block's cost as a probe has it."""
    return replace(
        cost,
        forward=max(cost.forward, probe.forward),
        backward=max(cost.backward, probe.backward),
        kept=probe.kept,
        less=probe.less,
        working=probe.working,
        waiting=probe.waiting,
    )


@cache
def _ends_of(layers: int, stages: int) -> list[int]:
    least, more = divmod(layers, stages)
    return [stage * least + min(stage, more) for stage in range(stages + 1)]


def _ends(layout: Layout) -> list[int]:
    """Return where stages begin and end, in blocks."""
    return _ends_of(layout.arch.layers, layout.pipeline * layout.virtual_stages)


def _nbytes(layout: Layout, parts: _Blocks, ends: list[int], rank: int) -> float:
    stages = range(rank, len(ends) - 1, layout.pipeline)
    first, last = rank == 0, rank == layout.pipeline - 1
    dense = sum(parts.dense[ends[s + 1]] - parts.dense[ends[s]] for s in stages)
    dense += parts.first.dense * first + parts.last.dense * last
    experts = sum(parts.experts[ends[s + 1]] - parts.experts[ends[s]] for s in stages)
    static, gradients = _state(layout, dense, experts)
    low = 4 if layout.precision == "fp32" else 2
    passes, later = _in_flight(layout, parts, ends, rank)
    # The logits are freed before the backward pass comes to a block, if it is not split.
    logits = parts.last.kept if last and not layout.splits_backward else 0.0
    working = parts.block.working
    if layout.zero == "zero3" and layout.reshard_after_forward and working:
        working += low * min(parts.dense[1], parts.dense[-1] - parts.dense[-2])  # the block's own, gathered
    held = passes + max(0.0, working - logits)
    if layout.zero == "zero3" and not layout.reshard_after_forward and layout.virtual_stages == 1:
        held += low * (parts.dense[ends[rank + 1]] - parts.dense[ends[rank]])  # gathered, and not given back
    if layout.zero == "zero3" and layout.micro_batches >= (2 * layout.pipeline if layout.virtual_stages > 1 else 2):
        if layout.pipeline == 1:
            held += gradients
        else:  # gathered weights and whole gradients stay until the last micro-batch
            grown = (low + (2 if layout.precision == "bf16" else 4)) * (dense + experts)
            held = max(held, grown + max(later, later - logits + parts.block.working))
    return static + max(gradients, held)


def _in_flight(layout: Layout, parts: _Blocks, ends: list[int], rank: int) -> tuple[float, float]:
    """Return the bytes of the passes in flight, and of those when each stage has done one before; at least.

    They are counted in the schedule for those layouts that are still in the race.
    """
    kept, waiting = [], []  # of one pass, for each stage
    for stage in range(rank, len(ends) - 1, layout.pipeline):
        begin, end, last = ends[stage], ends[stage + 1], stage == len(ends) - 2
        kept.append(max(0.0, parts.kept[end] - parts.kept[begin] - parts.block.less) + parts.last.kept * last)
        waiting.append((end - begin) * parts.block.waiting + parts.last.waiting * last)
    flying = in_flight(layout, rank, tuple(kept), tuple(waiting)) if parts.closer else None
    passes = _passes(layout, rank)
    return flying or (passes * min(kept), (passes - 1) * min(kept))


def _state(layout: Layout, dense: int, experts: int) -> tuple[float, float]:
    """Return the bytes of weights and optimizer's state, and those of gradients if they are not always there."""
    weights = 2 if layout.precision == "bf16" else 4
    states = 2 * weights
    if layout.zero == "zero3":
        numbers = dense / layout.shards + experts / layout.expert_shards
        return (weights + states) * numbers, weights * numbers
    if layout.engine == "megatron":
        shards = 1 if layout.zero == "none" else layout.shards
        numbers = dense / shards + experts / max(1, min(shards, layout.expert_shards))
        low = 4 if layout.precision == "fp32" else 2
        return (low + 4) * (dense + experts) + 12 * numbers, 0.0
    return (weights + states) * (dense + experts), weights * (dense + experts)


def _passes(layout: Layout, rank: int) -> int:
    """Return how many passes of a stage a rank starts at least before the first of their backward passes ends."""
    count, stages, pieces = layout.micro_batches, layout.pipeline, layout.virtual_stages
    after = stages - 1 - rank
    if stages == 1:
        return 1
    if layout.schedule == "gpipe":
        return count
    if layout.schedule == "interleaved":
        return min(pieces * count, (pieces - 1) * stages + 2 * after + 1)
    if layout.schedule == "zero-bubble":
        return min(pieces * count, (pieces - 1) * min(count, stages) + after + 1)
    return min(count, after + 1)
