"""The seconds of a whole step: every stage's actions on their streams, put together by the schedule."""

from collections import Counter
from functools import cache

from ...meter.work import Work
from ..catalog.clusters import Cluster
from ..catalog.layout_rates import LayoutRates
from . import stage_run as runs
from .chip import Chip
from .layout import Layout
from .links import Links
from .pipeline import Span, play
from .rank_memory import action_key
from .schedule import FOR_WEIGHTS, Action
from .stage_run import StageRun
from .stage_time import StageTime
from .streams import Streams

BUBBLE, UPDATE = "bubble", "update"


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
        seconds: of the step.
    """

    def __init__(
        self, layout: Layout, cluster: Cluster, rates: LayoutRates, order: list[list[Action]], stages: list[StageRun]
    ) -> None:
        self._layout, self._order, self._stages = layout, order, stages
        links = Links(layout, cluster, rates)
        low = "float8_e4m3fn" if layout.precision == "fp8" else ""
        launch = 0.0 if layout.cuda_graphs else rates.launch
        streams = Streams(Chip(cluster.gpu, rates, layout), links, low, launch, layout.tensor_overlap)
        distinct = {id(run): run for run in stages}
        times = {key: StageTime(layout, run, streams) for key, run in distinct.items()}
        self._times = [times[id(run)] for run in stages]
        self.timings = [time.timings for time in self._times]
        tokens = layout.micro_batch_size * layout.local_seq // (layout.tensor if layout.splits_tokens else 1)
        nbytes = tokens * layout.arch.hidden * (4 if layout.precision == "fp32" else 2)
        message = links["pipeline"].seconds("send", nbytes)
        self.spans: list[list[Span]] = play(order, self._action_seconds, lambda stage: message, len(stages))
        self._updates = [
            sum(self._times[stage].timings[runs.UPDATE, ""].seconds for stage in range(rank, len(stages), len(order)))
            for rank in range(len(order))
        ]
        self.seconds = max(span.end for rank in self.spans for span in rank) + max(self._updates)

    def _action_seconds(self, action: Action) -> float:
        return self._times[action.stage].seconds(action_key(self._layout, action), action)

    @property
    def parts(self) -> dict[str, float]:
        """Shares of the step, over all pipeline ranks, by what a chip does or waits for."""
        parts: Counter[str] = Counter()
        for rank in self._order:
            for action in rank:
                if action.kind != FOR_WEIGHTS:  # counted with the other half
                    parts += self._times[action.stage].timings[action_key(self._layout, action)].parts
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
