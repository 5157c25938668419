"""From a layout to an answer: bytes of every rank, and seconds of the step."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from ...core.units import GiB, human_bytes
from ..catalog.clusters import Cluster
from ..catalog.layout_rates import LayoutRates, layout_rates
from ..catalog.rooflines import fitted_rates, roofline_of
from . import stage_run as runs
from .layout import Layout
from .links import Links
from .long_stage import run_long_stage
from .pipeline import Span, play
from .rank_memory import RankMemory, action_key, rank_memory
from .schedule import Action, orders
from .stage_run import StageKind, StageRun
from .stage_time import StageTime
from .streams import Streams

# What lies between allocated and reserved memory of such runs: caching and fragmentation, from published pairs.
RESERVED = (1.0, 1.15)


@dataclass
class LayoutPlan:
    """What a layout needs, and how long its step takes.

    Attributes:
        ranks: the fullest moment of each pipeline rank (ranks of other dimensions are alike).
        seconds, low, high: of one optimizer step, and between which it should lie.
        parts: shares of a rank's step, over all ranks: "compute", "memory", "launch", the wire waited for, "bubble",
            "update".
        spans: what each pipeline rank does when.
        sent: bytes that a rank sends in a step, by wire, as the largest rank does.
        flops: that a rank computes in a step, on average, recomputation included.
        fits: whether the fullest rank has room on the cluster's GPU.
        floor: parameters, gradients and optimizer's state of the fullest rank.
    """

    layout: Layout
    cluster: Cluster
    ranks: list[RankMemory]
    seconds: float
    low: float
    high: float
    parts: dict[str, float]
    spans: list[list[Span]]
    flops: float
    fits: bool

    @property
    def worst(self) -> RankMemory:
        """The fullest rank."""
        return max(self.ranks, key=lambda rank: rank.nbytes)

    @property
    def reserved(self) -> tuple[int, int]:
        """Bytes between which the fullest rank's reserved memory will lie."""
        low, high = (int(self.worst.nbytes * factor) for factor in RESERVED)
        return low, high

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of one GPU."""
        return self.layout.tokens / self.layout.ranks / self.seconds

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization: products, and the causal half of attention, over the dense 16-bit peak."""
        return self.layout.arch.flops_per_token(self.layout.seq) * self.tokens_per_second / self._peak

    @property
    def hfu(self) -> float:
        """The same of all FLOPs that are computed, recomputation included."""
        return self.flops / self.seconds / self._peak

    @property
    def _peak(self) -> float:
        return self.cluster.gpu.flops32 if self.layout.precision == "fp32" else self.cluster.gpu.flops16

    @property
    def bound_by(self) -> str:
        """What takes the largest share of the step."""
        return max(self.parts, key=lambda part: self.parts[part])

    @property
    def gpu_hours_per_billion_tokens(self) -> float:
        """GPU-hours in which the cluster reads a billion tokens."""
        return 1e9 / self.tokens_per_second / 3600

    def __str__(self) -> str:
        layout, worst = self.layout, self.worst
        low, high = self.reserved
        lines = [
            f"{layout.ranks} x {self.cluster.gpu.name}: {layout.summary}",
            f"  {layout.arch.count() / 1e9:,.1f}B parameters, {layout.tokens / 1e6:.3g}M tokens a step",
            f"  {self.seconds:.3g} s a step ({self.low:.3g} to {self.high:.3g}), "
            f"{self.tokens_per_second:,.0f} tokens/s a GPU, MFU {self.mfu:.0%}, "
            f"{self.gpu_hours_per_billion_tokens:,.0f} GPU-hours per billion tokens",
            "  "
            + ", ".join(
                f"{share:.0%} {part}"
                for part, share in sorted(self.parts.items(), key=lambda p: -p[1])
                if share >= 0.005
            ),
            f"  peak allocated {human_bytes(worst.nbytes)} on pipeline rank {self.ranks.index(worst)}, {worst.at}",
            f"  reserved {low / GiB:,.1f} to {high / GiB:,.1f} GiB of {self.cluster.gpu.room / GiB:,.1f}: "
            + ("fits" if self.fits else "does not fit"),
        ]
        lines += [f"    {tenant:<23}{human_bytes(n):>12}" for tenant, n in worst.peak.most_common() if n > GiB // 100]
        return "\n".join(lines)

    def role_table(self) -> list[tuple[str, ...]]:
        """Return rows of text: for each pipeline rank its stages, its peak and what holds it."""
        rows: list[tuple[str, ...]] = [("rank", "stages", "peak GiB", "micro-batches", "at")]
        for number, rank in enumerate(self.ranks):
            stages = range(number, self.layout.pipeline * self.layout.virtual_stages, self.layout.pipeline)
            held = f"{rank.nbytes / GiB:.2f}"
            rows.append((str(number), ", ".join(map(str, stages)), held, str(rank.in_flight), rank.at))
        return rows


def plan_layout(
    layout: Layout, cluster: Cluster, rates: LayoutRates | None = None, tell: Callable[[str], None] = lambda stage: None
) -> LayoutPlan:
    """Plan a layout on a cluster.

    Args:
        layout: the ranks and what they do.
        cluster: whose GPUs and links.
        rates: what those reach; by default what was fitted to published runs.
        tell: called with the name of each part as it begins.

    Raises:
        RecipeError: the layout cannot be simulated.
    """
    rates = rates or layout_rates()
    kinds = stage_kinds(layout)
    stage_runs = {}
    for kind in dict.fromkeys(kinds):
        tell(f"running {sum((kind.dense, kind.mixed))} blocks")
        stage_runs[kind] = run_long_stage(layout, kind)
    tell("putting the schedule together")
    order = orders(layout)
    ranks = [
        rank_memory(layout, order[rank], {s: stage_runs[kinds[s]] for s in range(rank, len(kinds), layout.pipeline)})
        for rank in range(layout.pipeline)
    ]
    return _timed(layout, cluster, rates, ranks, order, [stage_runs[kind] for kind in kinds])


def stage_kinds(layout: Layout) -> list[StageKind]:
    """Return what each stage of a layout consists of."""
    stages = layout.stage_layers()
    kinds = []
    for number, layers in enumerate(stages):
        mixed = sum(map(layout.arch.is_moe, layers))
        kinds.append(StageKind(len(layers) - mixed, mixed, number == 0, number == len(stages) - 1))
    return kinds


def _timed(layout, cluster, rates, ranks, order, stages) -> LayoutPlan:  # noqa: ANN001
    links = Links(layout, cluster, rates)
    streams = Streams(
        step_roofline(cluster, rates), links, "float8_e4m3fn" if layout.precision == "fp8" else "", rates.launch
    )
    times = _stage_times(layout, stages, streams)
    seconds = lambda action: times[action.stage].seconds(action_key(layout, action), action)  # noqa: E731
    sixteen = 4 if layout.precision == "fp32" else 2
    tokens = layout.micro_batch_size * layout.local_seq // (layout.tensor if layout.splits_tokens else 1)
    message = links["pipeline"].seconds("send", tokens * layout.arch.hidden * sixteen)
    spans = play(order, seconds, lambda stage: message, len(stages))
    end = max(span.end for rank in spans for span in rank)
    updates = [
        sum(times[s].timings[runs.UPDATE, ""].seconds for s in range(rank, len(stages), layout.pipeline))
        for rank in range(layout.pipeline)
    ]
    total = end + max(updates)
    low, high = rates.interval
    fits = max(rank.nbytes for rank in ranks) * RESERVED[0] <= cluster.gpu.room
    flops = _flops(layout, order, stages)
    parts = _parts(layout, order, times, total, updates)
    return LayoutPlan(layout, cluster, ranks, total, low * total, high * total, parts, spans, flops, fits)


def _stage_times(layout: Layout, stages: list[StageRun], streams: Streams) -> list[StageTime]:
    by_run = {id(run): StageTime(layout, run, streams) for run in {id(run): run for run in stages}.values()}
    return [by_run[id(run)] for run in stages]


def step_roofline(cluster: Cluster, rates: LayoutRates):  # noqa: ANN201
    """Return the roofline of a cluster's GPU with the speed of products in many-GPU steps."""
    return _roofline(cluster.gpu.name, tuple(sorted(rates.products.items())))


@cache
def _roofline(gpu: str, products: tuple[tuple[str, float], ...]):  # noqa: ANN202
    from dataclasses import replace

    from ..catalog.gpus import GPUS

    roofline = roofline_of(GPUS[gpu], fitted_rates())
    factor = dict(products)
    rates = {
        dtype: [(m, n, k, rate * factor.get(dtype, 1.0)) for m, n, k, rate in shapes]
        for dtype, shapes in roofline.products.items()
    }
    return replace(roofline, products=rates)


def _flops(layout: Layout, order: list[list[Action]], stages: list[StageRun]) -> float:
    """Return the FLOPs of a step of one rank, the mean over the pipeline."""
    from ...meter.work import Work

    @cache
    def of(stage: int, key: runs.ActionKey) -> int:
        return sum(e.flops for place in stages[stage].actions[key] for e in place.events if isinstance(e, Work))

    total = sum(of(a.stage, action_key(layout, a)) for rank in order for a in rank if a.kind not in ("W",))
    return total / layout.pipeline


def _parts(layout: Layout, order, times: list[StageTime], total: float, updates: list[float]) -> dict[str, float]:  # noqa: ANN001
    parts: Counter[str] = Counter()
    for rank in order:
        for action in rank:
            if action.kind != "W":
                parts += times[action.stage].timings[action_key(layout, action)].parts
    parts["update"] += sum(updates)
    whole = total * layout.pipeline
    parts["bubble"] = max(0.0, whole - parts.total())
    return {part: seconds / whole for part, seconds in parts.items()}
