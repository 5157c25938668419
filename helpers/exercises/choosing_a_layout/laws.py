"""Checks of three formulas: what a layout holds, how long its step takes, and which of several is the best that fits.

Each law has several terms. Most checks look at one of them: they compare two layouts, or clusters, that differ in
nothing else, so the other terms cancel. What would cancel in each difference, such as a constant, is found by the two
checks that compare the sums, on layouts whose pipeline, tensor and shard are all above 1.
"""

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...core.units import GiB
from ...planner.catalog.clusters import CLUSTERS, Cluster
from ...planner.layout.arch import Arch
from ...planner.layout.layout import Layout
from ..base import Check, Evidence

NEAR = 1e-6  # relative
ARCH = Arch(layers=24, hidden=2048, heads=16, kv_heads=8, head_dim=128, ffn=5632, vocab=32_000)
WORDY = replace(ARCH, vocab=128_000)
NODE = CLUSTERS["dgx-h100"]
ROOMS = (4, 6, 9, 12, 24, 60)  # GiB
Case = tuple[str, Callable[[], float]]  # what it is, and its value


class OnFormulas(Check):
    """Compares what the formulas give, or differences or ratios of it, with the reference's."""

    unit: str
    look: str

    @classmethod
    def cases(cls, memory: Any, seconds: Any) -> list[Case]:
        """Return each case in words, and what to compute for it."""
        raise NotImplementedError

    @classmethod
    def probe(cls, seed: int, memory: Any, seconds: Any, best: Any) -> Evidence:
        return {"got": [float(value()) for _, value in cls.cases(memory, seconds)]}

    @classmethod
    def judge(cls, seen: Evidence, expected: Evidence) -> str | None:
        cases = cls.cases(None, None)  # for their words: nothing is computed
        for (words, _), got, want in zip(cases, seen["got"], expected["got"], strict=True):
            if not abs(got - want) <= NEAR * max(abs(want), 1e-9):
                return f"{words}: {got:,.6g} {cls.unit}; it should be {want:,.6g}. {cls.look}"
        return None


def _less(of: Any, first: Layout, second: Layout, cluster: Cluster | None = None) -> Callable[[], float]:
    """Return what computes how much more `of` says of the first layout than of the second."""
    more = (cluster,) if cluster else ()
    return lambda: of(first, *more) - of(second, *more)


def _grid(tensor: int, pipeline: int, shard: int, **others: Any) -> Layout:
    return Layout(ARCH, tensor=tensor, pipeline=pipeline, shard=shard, **{"micro_batches": 4, **others})


SUMS = (
    _grid(2, 2, 2),
    _grid(4, 3, 2, micro_batches=2, micro_batch_size=3, seq=1024),
    _grid(2, 4, 8, micro_batches=6, recompute="full"),
    _grid(8, 2, 4, micro_batch_size=2, seq=8192, recompute="full"),
    _grid(1, 1, 1, micro_batches=1),
)


def _words(layout: Layout) -> str:
    grid = f"tensor {layout.tensor}, pipeline {layout.pipeline}, shard {layout.shard}, recompute {layout.recompute}"
    return f"{grid}, {layout.micro_batches} micro-batches of {layout.micro_batch_size} x {layout.seq:,} tokens"


class StateOfThisRank(OnFormulas):
    """State: 16 bytes per parameter of this rank, split over the `shard` ranks."""

    unit, look = "bytes", "Which part of the parameters is on this rank, and which part of their state does it keep?"
    hint = (
        "A rank computes with `layout.arch.count()` / (tensor x pipeline) parameters, and keeps 1 / shard of the state."
    )

    @classmethod
    def cases(cls, memory: Any, seconds: Any) -> list[Case]:
        found = []
        for tensor, pipeline in ((1, 1), (4, 1), (1, 4), (2, 2)):
            few, many = (_grid(tensor, pipeline, shard) for shard in (2, 8))
            found.append((f"tensor {tensor}, pipeline {pipeline}: shard 2 minus shard 8", _less(memory, few, many)))
        return found


class ActivationsInFlight(OnFormulas):
    """Activations: 34 bytes per token and hidden element in each block, for each micro-batch in flight."""

    unit, look = "bytes", "How many blocks does this rank have, and how many micro-batches are in flight at once?"
    hint = (
        "Tokens of a micro-batch: micro_batch_size x seq; tensor ranks keep 1 / tensor of them.\n"
        "1F1B: the first rank has `pipeline` micro-batches in flight, but never more than `micro_batches`."
    )

    @classmethod
    def cases(cls, memory: Any, seconds: Any) -> list[Case]:
        found = []
        for tensor, pipeline, count in ((1, 2, 8), (4, 2, 8), (1, 8, 16), (1, 8, 3)):
            one = _grid(tensor, pipeline, 2, micro_batches=count)
            two = replace(one, micro_batch_size=2)
            words = f"tensor {tensor}, pipeline {pipeline}, {count} micro-batches: batch 2 minus batch 1"
            found.append((words, _less(memory, two, one)))
        return found


class FullRecomputeKeepsInputs(OnFormulas):
    """Full recomputation saves 2 bytes in place of 34, and holds all of one block while it is recomputed."""

    unit, look = "bytes", "Every block keeps its input; in addition, one block at a time has all of its 34 bytes."
    hint = "Saved: 2 bytes x blocks x in flight. In addition, once: 34 bytes of one block of one micro-batch."

    @classmethod
    def cases(cls, memory: Any, seconds: Any) -> list[Case]:
        found = []
        for tensor, pipeline in ((1, 2), (4, 2), (1, 8)):
            one = _grid(tensor, pipeline, 2, micro_batches=8, recompute="full")
            words = f"recompute full, tensor {tensor}, pipeline {pipeline}: batch 2 minus batch 1"
            found.append((words, _less(memory, replace(one, micro_batch_size=2), one)))
        return found


class LogitsOfTheWholeModel(OnFormulas):
    """Logits: 4 bytes per vocabulary entry and token of a micro-batch, if there is no pipeline."""

    unit, look = (
        "bytes",
        "With one stage, logits take tokens x vocabulary x 4 bytes / tensor. Otherwise, another rank has them.",
    )
    hint = "In a pipeline the last rank has the logits, and fewer micro-batches in flight. Otherwise, count them."

    @classmethod
    def cases(cls, memory: Any, seconds: Any) -> list[Case]:
        def more(of: Layout) -> float:
            """What a larger vocabulary adds to a second sequence: its state cancels."""
            two = replace(of, micro_batch_size=2)
            wordy = memory(replace(two, arch=WORDY)) - memory(replace(of, arch=WORDY))
            return wordy - (memory(two) - memory(of))

        shapes = ((1, 1), (4, 1), (1, 4))
        return [
            (f"tensor {t}, pipeline {p}: a vocabulary larger by 96,000", lambda t=t, p=p: more(_grid(t, p, 2)))
            for t, p in shapes
        ]


class MemoryIsTheSum(OnFormulas):
    """Memory is the sum of state, activations and logits, and of nothing else."""

    after = ("state_of_this_rank", "activations_in_flight", "full_recompute_keeps_inputs", "logits_of_the_whole_model")
    unit, look = (
        "bytes",
        "The differences between layouts are right, so look for a term that is the same for every layout.",
    )
    hint = "State, activations, and logits where pipeline is 1. Is anything else added to them?"

    @classmethod
    def cases(cls, memory: Any, seconds: Any) -> list[Case]:
        return [(_words(layout), lambda layout=layout: memory(layout)) for layout in SUMS]


class ComputesAtHalfThePeak(OnFormulas):
    """Compute: the step's FLOPs over all ranks at half of `gpu.flops16`; a third more with full recomputation."""

    unit, look = "seconds", "A rank computes FLOPs per token x tokens of the step / ranks, at half of the peak."
    hint = (
        "`layout.arch.flops_per_token(layout.seq)` covers forward and backward, as much as three forward passes.\n"
        "What does a fourth one add?"
    )

    @classmethod
    def cases(cls, memory: Any, seconds: Any) -> list[Case]:
        found = []
        for recompute in ("none", "full"):
            one = _grid(1, 1, 1, recompute=recompute)
            found.append((f"one GPU, recompute {recompute}", lambda one=one: seconds(one, NODE)))
        fast = replace(NODE, inside=1e18, outside=1e18)
        for tensor, pipeline, shard in ((1, 1, 8), (2, 4, 2), (4, 2, 4)):
            words = f"tensor {tensor}, pipeline {pipeline}, shard {shard}, infinitely fast links"
            layout = _grid(tensor, pipeline, shard)
            found.append((words, lambda layout=layout: seconds(layout, fast)))
        other, two = CLUSTERS["8x-4090"], _grid(1, 2, 1)
        return [*found, (f"pipeline 2 on {other.gpu.name}", lambda: seconds(two, other))]


def _by_link(seconds: Any, layout: Layout, link: str) -> Callable[[], float]:
    """Return what computes how much longer a step takes if one kind of link is half as fast."""
    slow = replace(NODE, **{link: getattr(NODE, link) / 2})
    return lambda: seconds(layout, slow) - seconds(layout, NODE)


class TensorWaitsOnItsLink(OnFormulas):
    """Tensor: four all-reduces per block and micro-batch, six with full recomputation, on a ring of neighbors."""

    unit, look = (
        "seconds",
        "Which link do tensor ranks use? How many all-reduces do they need, of how many bytes, in how many blocks?",
    )
    hint = (
        "A message has 2 bytes x micro_batch_size x seq x hidden; a ring sends 2 (n - 1) / n of it.\n"
        "Blocks of this rank: layers / pipeline. Neighbors: `ring_bandwidth(cluster, layout.tensor)`."
    )

    @classmethod
    def cases(cls, memory: Any, seconds: Any) -> list[Case]:
        found = []
        for tensor, pipeline, recompute in ((4, 1, "none"), (8, 1, "full"), (16, 1, "none"), (4, 4, "none")):
            layout = _grid(tensor, pipeline, 1, recompute=recompute)
            for link in ("inside", "outside"):
                words = f"tensor {tensor}, pipeline {pipeline}, recompute {recompute}, nodes of 8: seconds"
                words += f" that links {link} at half speed add to the step"
                found.append((words, _by_link(seconds, layout, link)))
        return found


class DataHidesBehindCompute(OnFormulas):
    """Data: two BF16 gathers and an FP32 reduction per micro-batch; only the longer of data and compute counts."""

    unit, look = (
        "seconds",
        "A parameter is gathered twice and its gradient reduced once: how many bytes? Take the maximum, not a sum.",
    )
    hint = (
        "This rank has count / (tensor x pipeline) parameters. Each of them takes 2 + 2 + 4 bytes per micro-batch.\n"
        "An all-gather or a reduce-scatter of B bytes over n ranks sends (n - 1) / n of B.\n"
        "The ranks are `tensor` apart: `ring_bandwidth(cluster, layout.shard, layout.tensor)`.\n"
        "`max(compute, data)`: the next block is gathered while this one computes."
    )

    @classmethod
    def cases(cls, memory: Any, seconds: Any) -> list[Case]:
        slow = replace(NODE, inside=NODE.inside / 1000, outside=NODE.outside / 1000)
        found: list[Case] = []
        for tensor, shard in ((1, 8), (1, 32), (4, 4), (8, 4)):
            layout = _grid(tensor, 1, shard)
            slower = replace(layout, micro_batches=5)
            # The tensor ranks' wait is the same in both, but for the micro-batches.
            words = f"tensor {tensor}, shard {shard}, links a thousand times slower: a fifth micro-batch adds"
            found.append((words, lambda a=layout, b=slower: seconds(b, slow) - seconds(a, slow)))
        many = _grid(1, 1, 8, micro_batch_size=8)
        found.append(
            (
                "shard 8, batch 8: seconds that links inside at half speed add to the step",
                _by_link(seconds, many, "inside"),
            )
        )
        # The tensor ranks are neighbors in a node, the shard ranks are not.
        far, farther = (replace(NODE, outside=NODE.outside / slower) for slower in (1000, 2000))
        stages = _grid(8, 2, 4)
        words = "tensor 8, pipeline 2, shard 4: links outside 2,000 times slower, minus 1,000 times slower"
        return [*found, (words, lambda: seconds(stages, farther) - seconds(stages, far))]


class BubbleStretchesTheStep(OnFormulas):
    """Bubble: a step takes (1 + (pipeline - 1) / micro_batches) times as long."""

    unit, look = "times", "What a rank does in the step, plus the time of pipeline - 1 micro-batches of waiting."
    hint = "The bubble is (p - 1) / m of the working time. As a share of the whole step, it is smaller."

    @classmethod
    def cases(cls, memory: Any, seconds: Any) -> list[Case]:
        found: list[Case] = []
        for pipeline, tensor in ((4, 1), (8, 2)):
            few, many = (_grid(tensor, pipeline, 1, micro_batches=m) for m in (4, 16))
            words = f"pipeline {pipeline}, tensor {tensor}: a step with 4 micro-batches / one with 16"
            found.append((words, lambda a=few, b=many: seconds(a, NODE) / seconds(b, NODE)))
        return found


class SecondsAreTheSum(OnFormulas):
    """Seconds are (max(compute, data) + tensor) x bubble, and nothing else, even if every dimension is above 1."""

    after = (
        "computes_at_half_the_peak",
        "tensor_waits_on_its_link",
        "data_hides_behind_compute",
        "bubble_stretches_the_step",
    )
    unit, look = "seconds", "Each term is right, so look at how you combine them."
    hint = "`(max(compute, data) + tensor) * (1 + (pipeline - 1) / micro_batches)`. Is anything else added?"

    @classmethod
    def cases(cls, memory: Any, seconds: Any) -> list[Case]:
        slow = replace(NODE, inside=NODE.inside / 50, outside=NODE.outside / 50)
        return [
            (f"{_words(layout)}, {links}", lambda layout=layout, cluster=cluster: seconds(layout, cluster))
            for layout in SUMS
            for links, cluster in (("links of a DGX", NODE), ("links 50 times slower", slow))
        ]


class FastestThatFits(Check):
    """`best` returns the layout with the fewest seconds of those whose memory fits, by your own formulas."""

    compared = False
    hint = "First drop the layouts that exceed `cluster.gpu.room`, then take the fewest `seconds`: `min(..., key=...)`."

    @staticmethod
    def probe(seed: int, memory: Any, seconds: Any, best: Any) -> Evidence:
        seen = []
        for room in ROOMS:
            cluster = replace(NODE, gpu=replace(NODE.gpu, total=room * GiB))
            layouts = _some(seed + room)
            chosen = best(list(layouts), cluster)
            figures = [[float(memory(layout)), float(seconds(layout, cluster))] for layout in layouts]
            number = None if chosen is None else layouts.index(chosen)
            seen.append({"room": cluster.gpu.room, "seed": seed + room, "figures": figures, "chosen": number})
        return {"cases": seen, "filled": FastestThatFits._filled(memory, best)}

    @staticmethod
    def _filled(memory: Any, best: Any) -> list[bool]:
        """Return whether a layout is chosen that fills the room to the byte, and one that needs a byte more."""
        room = math.ceil(memory(SUMS[0]))
        rooms = (replace(NODE, gpu=replace(NODE.gpu, total=NODE.gpu.context + n)) for n in (room, room - 1))
        return [best([SUMS[0]], cluster) is not None for cluster in rooms]

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case in seen["cases"]:
            room, names = case["room"], [layout.summary for layout in _some(case["seed"])]
            fitting = [(took, nbytes, i) for i, (nbytes, took) in enumerate(case["figures"]) if nbytes <= room]
            if not fitting:
                continue
            least, small, number = min(fitting)
            other = f"{names[number]} fits with {small / GiB:.1f} GiB and takes {least:.4g} s"
            if case["chosen"] is None:
                return f"Room for {room / GiB:.1f} GiB: `best` returns None, but {other}."
            nbytes, took = case["figures"][case["chosen"]]
            mine = f"Room for {room / GiB:.1f} GiB: {names[case['chosen']]}"
            if nbytes > room:
                return f"{mine} holds {nbytes / GiB:.1f} GiB; {other}."
            if not took <= least:
                return f"{mine} takes {took:.4g} s; {other}."
        if seen["filled"] != [True, False]:
            return "A layout fits if its memory is at most `cluster.gpu.room`: equal still fits, a byte more does not."
        return None


class NoneWhereNothingFits(Check):
    """`best` returns None where no layout fits."""

    compared = False
    hint = "`min` of an empty list raises, unless it has a `default`."

    @staticmethod
    def probe(seed: int, memory: Any, seconds: Any, best: Any) -> Evidence:
        tiny = replace(NODE, gpu=replace(NODE.gpu, total=GiB))
        return {"got": best(_some(seed), tiny) is not None, "empty": best([], NODE) is not None}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        where = {"got": "although no layout fits", "empty": "for an empty list of layouts"}
        for key, words in where.items():
            if seen[key]:
                return f"`best` returns a layout {words}; it should return None."
        return None


def _some(seed: int) -> list[Layout]:
    """Return layouts of 16 ranks for the same tokens, in no order."""
    shapes = [(t, p, 16 // (t * p)) for t in (1, 2, 4, 8) for p in (1, 2, 4) if t * p <= 16]
    layouts = [
        _grid(t, p, shard, micro_batch_size=size, micro_batches=64 // (shard * size), recompute=kept)
        for t, p, shard in shapes
        for size in (1, 2, 4)
        for kept in ("none", "full")
    ]
    random.Random(seed).shuffle(layouts)
    return layouts


LAWS = (
    StateOfThisRank,
    ActivationsInFlight,
    FullRecomputeKeepsInputs,
    LogitsOfTheWholeModel,
    MemoryIsTheSum,
    ComputesAtHalfThePeak,
    TensorWaitsOnItsLink,
    DataHidesBehindCompute,
    BubbleStretchesTheStep,
    SecondsAreTheSum,
    FastestThatFits,
    NoneWhereNothingFits,
)
