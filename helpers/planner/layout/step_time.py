"""The seconds of a whole step: every stage's actions on their streams, put together by the schedule."""

from collections import Counter
from functools import cache

from ...meter.work import Work
from ...pipelines.play import FOR_WEIGHTS, FORWARD, Pass, Span, play
from ..catalog.clusters import Cluster
from ..catalog.layout_rates import LayoutRates
from . import stage_run as runs
from .chip import EIGHT, FOUR, Chip
from .layout import Layout
from .links import Links
from .rank_memory import action_key
from .stage_run import StageRun
from .stage_time import StageTime
from .streams import Streams, Timing

BUBBLE, UPDATE = "bubble", "update"
# Tensor ranks of PyTorch hold DTensors. Without a compiler each of their operations works out its placement on the host
# first: 0.34 s for 1,000 calls of addmm (pytorch/pytorch#107305, after it was made faster).
DTENSOR_LAUNCH = 0.34e-3


class StepTime:
    """The time of one optimizer step.

    Args:
        layout: of the step.
        cluster: on which it runs.
        rates: what that reaches.
        order: the actions of each pipeline rank.
        stages: what each stage does.

    Attributes:
        spans: what each pipeline rank does when.
        timings: of each stage, how long its actions take.
        reduced: when each pipeline rank's gradients are reduced; 0 where its last pass waits for that.
        seconds: of the step.
    """

    def __init__(
        self, layout: Layout, cluster: Cluster, rates: LayoutRates, order: list[list[Pass]], stages: list[StageRun]
    ) -> None:
        self._layout, self._order, self._stages = layout, order, stages
        links = Links(layout, cluster, rates)
        narrow = FOUR if layout.four_bits and cluster.gpu.flops4 else EIGHT
        low = narrow if layout.precision == "fp8" else ""
        launch = 0.0 if layout.cuda_graphs else rates.launch_seconds
        if layout.engine == "torchtitan" and layout.tensor > 1 and not layout.compile:
            launch = max(launch, DTENSOR_LAUNCH)
        streams = Streams(Chip(cluster.gpu, rates, layout), links, low, launch, layout.tensor_overlap)
        distinct = {(id(run), at >= layout.pipeline): run for at, run in enumerate(stages)}
        times = {key: StageTime(layout, run, streams, key[1]) for key, run in distinct.items()}
        self._times = [times[id(run), at >= layout.pipeline] for at, run in enumerate(stages)]
        self.timings = [time.timings for time in self._times]
        message = links["pipeline"].seconds("send", _sent_bytes(layout))
        self.spans: list[list[Span]] = play(
            order, self._action_seconds, lambda stage: message, len(stages), self._gathered
        )
        self.reduced = [self._reduced_at(spans) for spans in self.spans]
        self._updates = [
            sum(self._times[stage].timings[runs.UPDATE, ""].seconds for stage in range(rank, len(stages), len(order)))
            for rank in range(len(order))
        ]
        self._exposed = [
            sum(self._times[stage].exposed for stage in range(rank, len(stages), len(order)))
            for rank in range(len(order))
        ]
        self.seconds = max([span.end for rank in self.spans for span in rank] + self.reduced) + max(self._updates)
        self.seconds += max(self._exposed)

    def _gathered(self, action: Pass) -> float:
        """Return when the weights are there that an action needs: one stage of a rank after the other gathers them."""
        if action.kind != FORWARD or action.micro_batch or action.stage < self._layout.pipeline:
            return 0.0
        before = range(action.stage, 0, -self._layout.pipeline)
        return sum(self._times[stage].gathering for stage in before)

    def _reduced_at(self, spans: list[Span]) -> float:
        """Return when a rank's gradients are reduced, those of one stage after the other."""
        done = 0.0
        for span in spans:
            timing = self._timing(span.action)
            if timing.tail and span.action.kind != FOR_WEIGHTS:
                done = max(done + timing.sent, span.end + timing.tail)
        return done

    def _timing(self, action: Pass) -> Timing:
        return self._times[action.stage].timings[action_key(self._layout, action)]

    def _action_seconds(self, action: Pass) -> float:
        return self._times[action.stage].seconds(action_key(self._layout, action), action)

    @property
    def parts(self) -> dict[str, float]:
        """Shares of the step, over all pipeline ranks, by what a chip does or waits for."""
        parts: Counter[str] = Counter()
        for rank in self._order:
            for action in rank:
                if action.kind != FOR_WEIGHTS:  # counted with the other half
                    parts += self._timing(action).parts
        for spans, reduced in zip(self.spans, self.reduced, strict=True):
            parts["shard" if self._layout.zero == "zero3" else "data"] += max(0.0, reduced - spans[-1].end)
        parts["data"] += sum(self._exposed)
        parts[UPDATE] += sum(self._updates)
        whole = self.seconds * len(self._order)
        parts[BUBBLE] = max(0.0, whole - parts.total())
        return {part: seconds / whole for part, seconds in parts.items()}

    @property
    def flops(self) -> float:
        """FLOPs of one rank in a step, recomputation included: the mean over the pipeline."""

        @cache
        def of(stage: int, key: runs.ActionKey) -> int:
            places = self._stages[stage].actions[key]
            return sum(event.flops for place in places for event in place.events if isinstance(event, Work))

        actions = (action for rank in self._order for action in rank if action.kind != FOR_WEIGHTS)
        return sum(of(a.stage, action_key(self._layout, a)) for a in actions) / len(self._order)


def _sent_bytes(layout: Layout) -> float:
    """Return what a rank sends to the next stage.

    Tensor ranks that hold the same tokens send a part each, and gather it in the node (Narayanan et al. 2021, section
    4.1: Megatron's scatter/gather optimization).
    """
    parts = layout.tensor if layout.splits_tokens or layout.engine == "megatron" else 1
    return (
        layout.micro_batch_size
        * layout.local_seq
        / parts
        * layout.arch.hidden
        * (4 if layout.precision == "fp32" else 2)
    )
