"""Bounds: the seconds and the bytes that a layout needs at least, without running it.

A rank of a pipeline waits until the first micro-batch has come to it, is busy with all of them, and then the last
gradients must go back; that holds in any order of the schedule. What a rank holds at least are its weights, gradients
and state, and what the micro-batches keep that the schedule starts before the first one ends.
"""

from dataclasses import dataclass
from functools import cache
from itertools import accumulate

from ..catalog.clusters import Cluster
from ..catalog.layout_rates import layout_rates, roofline_in_a_cluster
from ..layout.layout import Layout
from ..layout.links import Links
from .block_cost import BlockCost, BlockCosts

SAFE = 1 - 1e-6  # sums in another order round otherwise


@dataclass(frozen=True)
class Bound:
    """What a layout needs at least."""

    seconds: float
    nbytes: float


@dataclass(frozen=True)
class _Blocks:
    """Costs of a layout's parts, sums over the first blocks, and seconds of a message to the next stage."""

    first: BlockCost
    last: BlockCost
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    weights: tuple[float, ...]
    kept: tuple[float, ...]
    dense: tuple[int, ...]
    experts: tuple[int, ...]
    message: float


class Bounds:
    """Bounds of layouts on a cluster; what layouts have in common is counted once."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._rates = cluster, layout_rates()
        self._chip = roofline_in_a_cluster(cluster.gpu, self._rates)
        self._known: dict[tuple, _Blocks] = {}
        self._product = cache(self._chip.product_seconds)

    def of(self, layout: Layout) -> Bound:
        """Return what `layout` needs at least."""
        parts = self._parts(layout)
        stages = layout.pipeline * layout.virtual_stages
        least, more = divmod(layout.arch.layers, stages)
        ends = [stage * least + min(stage, more) for stage in range(stages + 1)]
        ranks = (0, layout.pipeline - 1) if layout.pipeline > 1 else (0,)
        seconds = max(self._seconds(layout, parts, ends, rank) for rank in ranks)
        nbytes = max(_nbytes(layout, parts, ends, rank) for rank in ranks)
        return Bound(seconds * SAFE, nbytes * SAFE)

    def _seconds(self, layout: Layout, parts: _Blocks, ends: list[int], rank: int) -> float:
        stages = range(rank, len(ends) - 1, layout.pipeline)
        busy_forward = sum(parts.forward[ends[s + 1]] - parts.forward[ends[s]] for s in stages)
        busy_backward = sum(parts.backward[ends[s + 1]] - parts.backward[ends[s]] for s in stages)
        first, last = rank == 0, rank == layout.pipeline - 1
        busy_forward += parts.first.forward * first + parts.last.forward * last
        busy_backward += parts.first.backward * first + parts.last.backward * last
        if layout.zero == "zero3":
            blocks = [(ends[s], ends[s + 1]) for s in stages]
            busy_forward, busy_backward = self._sharded(layout, parts, blocks, (busy_forward, busy_backward))
        busy = layout.micro_batches * (busy_forward + busy_backward)
        before = parts.forward[ends[rank]] + (parts.first.forward if rank else 0.0) + rank * parts.message
        after = parts.backward[ends[rank]] + (parts.first.backward if rank else 0.0) + rank * parts.message
        return before + busy + (after if layout.schedule != "zero-bubble" else 0.0)

    def _sharded(
        self, layout: Layout, parts: _Blocks, blocks: list[tuple[int, int]], busy: tuple[float, float]
    ) -> tuple[float, float]:
        """Return the seconds of both passes if parameters are gathered, copied out, and their gradients reduced.

        In a pipeline, what was gathered backward stays until the last micro-batch, and gradients are added up.
        """
        links = Links(layout, self._cluster, self._rates)
        number = sum(end - begin for begin, end in blocks)
        parameters = sum(parts.dense[end] - parts.dense[begin] for begin, end in blocks)
        low, wide = (4, 4) if layout.precision == "fp32" else (2, 2 if layout.precision == "bf16" else 4)
        gather = number * links["shard"].seconds("all-gather", low * parameters / number)
        reduce = number * links["shard"].seconds("reduce-scatter", wide * parameters / number)
        copy = low * parameters / max(rate for _, rate in self._chip.bandwidth)
        forward, backward = busy
        again = layout.reshard_after_forward
        if layout.pipeline == 1:
            back = max(backward + (5 if again else 3) * copy, reduce + (gather if again else 0.0))
            return max(forward + 2 * copy, gather), back
        adding = 4 * copy * (layout.micro_batches - 1) / layout.micro_batches
        return (max(forward + 2 * copy, gather) if again else forward), backward + adding

    def _parts(self, layout: Layout) -> _Blocks:
        key = (
            *(layout.tensor, layout.pipeline, layout.context, layout.context_method, layout.expert),
            *(layout.micro_batch_size, layout.recompute, layout.engine, layout.ranks),
        )
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._count(layout)
        return known

    def _count(self, layout: Layout) -> _Blocks:
        links = Links(layout, self._cluster, self._rates)
        costs = BlockCosts(layout, self._product, self._chip, links)
        arch = layout.arch
        kinds = {mixed: costs.block(mixed) for mixed in {arch.is_moe(layer) for layer in range(arch.layers)}}
        blocks = [kinds[arch.is_moe(layer)] for layer in range(arch.layers)]
        sums = {
            name: tuple(accumulate((getattr(block, name) for block in blocks), initial=0))
            for name in ("forward", "backward", "weights", "kept", "dense", "experts")
        }
        message = links["pipeline"].seconds("send", costs.own_bytes) if layout.pipeline > 1 else 0.0
        return _Blocks(costs.embedding(), costs.head(), **sums, message=message)


def _nbytes(layout: Layout, parts: _Blocks, ends: list[int], rank: int) -> float:
    stages = range(rank, len(ends) - 1, layout.pipeline)
    first, last = rank == 0, rank == layout.pipeline - 1
    dense = sum(parts.dense[ends[s + 1]] - parts.dense[ends[s]] for s in stages)
    dense += parts.first.dense * first + parts.last.dense * last
    experts = sum(parts.experts[ends[s + 1]] - parts.experts[ends[s]] for s in stages)
    static, gradients = _state(layout, dense, experts)
    low = 4 if layout.precision == "fp32" else 2
    least = min(parts.kept[ends[s + 1]] - parts.kept[ends[s]] for s in stages)
    chunks = _in_flight(layout, rank)
    held = chunks * least + parts.last.kept * (layout.pipeline == 1)
    if layout.zero == "zero3" and not layout.reshard_after_forward and layout.virtual_stages == 1:
        held += low * (parts.dense[ends[rank + 1]] - parts.dense[ends[rank]])  # gathered, and not given back
    if layout.zero == "zero3" and layout.micro_batches >= (2 * layout.pipeline if layout.virtual_stages > 1 else 2):
        if layout.pipeline == 1:
            held += gradients
        else:  # gathered weights and whole gradients stay until the last micro-batch
            grown = (low + (2 if layout.precision == "bf16" else 4)) * (dense + experts) + (chunks - 1) * least
            held = max(held, grown)
    return static + max(gradients, held)


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


def _in_flight(layout: Layout, rank: int) -> int:
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
