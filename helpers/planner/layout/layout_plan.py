"""From a layout to an answer: bytes of every rank, and seconds of the step."""

from collections.abc import Callable
from dataclasses import dataclass

from ...core.units import GiB, MiB, human_bytes
from ...pipelines.play import Span
from ..catalog.clusters import Cluster
from ..catalog.layout_rates import LayoutRates, layout_rates
from ..grades import DOES_NOT_FIT, grade
from .chip import takes_cudnn
from .layout import Layout
from .long_stage import run_long_stage
from .rank_memory import (
    RankMemory,
    add_standing,
    add_update_of_deepspeed,
    add_workspaces,
    rank_memory,
    share_dummies,
)
from .schedule import orders
from .stage_run import ActionKey, StageKind
from .step_time import StepTime
from .streams import Timing
from .unsplit import add_unsplit

# What lies between allocated and reserved memory, by engine: caching and fragmentation. `fully_shard` frees and takes
# buffers of many sizes on several streams: torchtitan's and torchao's printed peaks of reserved memory over what is
# planned here. (pytorch/torchtitan#165 prints reserved over active memory: 1.36, 1.21 and 1.18 times.)
RESERVED = {"torchtitan": (1.38, 1.585), "megatron": (1.0, 1.15), "pytorch": (1.0, 1.15)}
# What a process has outside PyTorch's allocator: the context with kernels, 1573 MiB on an A100 (BLOOM's
# chronicles-prequel.md), and buffers of communicators. NCCL takes 9.2 MiB per channel and peer (4 MiB, 512 KiB and
# 4.7 MiB for its three protocols, src/init.cc); some ten groups with 8 to 24 channels make 1 to 3 GiB of that.
CONTEXT = 1573 * MiB
COMMUNICATORS = 2 * GiB
_OWN_TIME = ("compute", "memory", "launch", "bubble", "update")  # parts of a step that are not waiting for ranks


@dataclass
class LayoutPlan:
    """What a layout needs, and how long its step takes.

    Attributes:
        ranks: the fullest moment of each pipeline rank (ranks of other dimensions are alike).
        seconds, low, high: of one optimizer step, and between which it should lie.
        parts: shares of a rank's step, over all ranks: "compute", "memory", "launch", the wire waited for, "bubble",
            "update".
        spans: what each pipeline rank does when.
        timings: of each stage, how long its actions take and on what they wait.
        reduced: when the gradients of each pipeline rank are reduced, if not before its last pass ends.
        flops: that a rank computes in a step, on average, recomputation included.
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
    timings: list[dict[ActionKey, Timing]]
    reduced: list[float]

    @property
    def worst(self) -> RankMemory:
        """The fullest rank."""
        return max(self.ranks, key=lambda rank: rank.nbytes)

    @property
    def reserved(self) -> tuple[int, int]:
        """Bytes between which the fullest rank's reserved memory will lie."""
        return reserved_bytes(self.layout, self.cluster, self.worst.nbytes)

    @property
    def wanted(self) -> tuple[int, int]:
        """The same where nothing limits the allocator."""
        return tuple(int(self.worst.nbytes * share) for share in RESERVED[self.layout.engine])

    @property
    def grade(self) -> str:
        """Whether the layout "fits" the cluster's GPU, is "tight" or "does not fit"."""
        return grade(self.worst.nbytes, self.wanted[1], self.cluster.gpu.room)

    @property
    def fits(self) -> bool:
        """Whether the cluster's GPU may run it, with room to spare or without."""
        return self.grade != DOES_NOT_FIT

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of one GPU."""
        return self.layout.tokens / self.layout.ranks / self.seconds

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization: products, and the causal half of attention, over the dense 16-bit peak."""
        return self.layout.flops_per_token * self.tokens_per_second / self._peak

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

    @property
    def assumed(self) -> dict[str, str]:
        """What the seconds assume that no option says, by name."""
        faster = takes_cudnn(self.layout, self.cluster.gpu)
        return {"attention_speed": "cuDNN's on Hopper"} if faster else {}

    @property
    def verdict(self) -> str:
        """Whether it fits, in words."""
        return f"{self.grade} in {self.cluster.gpu.room / GiB:,.1f} GiB per GPU"

    def __str__(self) -> str:
        layout, worst = self.layout, self.worst
        low, high = self.wanted
        lines = [
            f"{layout.ranks} x {self.cluster.gpu.name}: {layout.summary}",
            f"  {self.verdict}",
            f"  {layout.arch.count() / 1e9:,.1f}B parameters, {layout.tokens:,} tokens per step",
            f"  {self.seconds:.3g} s per step ({self.low:.3g} to {self.high:.3g}), "
            f"{self.tokens_per_second:,.0f} tokens/s per GPU, MFU {self.mfu:.0%}, "
            f"{self.gpu_hours_per_billion_tokens:,.0f} GPU-hours per billion tokens",
            "  of the time: "
            + ", ".join(
                f"{share:.0%} {part if part in _OWN_TIME else f'waiting for {part} ranks'}"
                for part, share in sorted(self.parts.items(), key=lambda p: -p[1])
                if share >= 0.005
            ),
            f"  peak allocated {human_bytes(worst.nbytes)} on pipeline rank {self.ranks.index(worst)}, {worst.at}",
            f"  reserved {low / GiB:,.1f} to {high / GiB:,.1f} GiB if the GPU has room",
        ]
        lines += [
            f"    {category:<23}{human_bytes(n):>12}" for category, n in worst.peak.most_common() if n > GiB // 100
        ]
        return "\n".join(lines)

    def role_table(self) -> list[tuple[str, ...]]:
        """Return rows of text: for each pipeline rank its stages, its peak and what holds it."""
        rows: list[tuple[str, ...]] = [("rank", "stages", "peak GiB", "micro-batches", "at")]
        for number, rank in enumerate(self.ranks):
            stages = range(number, self.layout.pipeline * self.layout.virtual_stages, self.layout.pipeline)
            held = f"{rank.nbytes / GiB:.2f}"
            rows.append((str(number), ", ".join(map(str, stages)), held, str(rank.in_flight), rank.at))
        return rows


def reserved_bytes(layout: Layout, cluster: Cluster, held: int) -> tuple[int, int]:
    """Return between which bytes the reserved memory of a rank lies that allocates `held`; no more than there is.

    Where `held` itself is more than there is, it is too much, or the layout does not run: a run that did held less.
    """
    least, most = RESERVED[layout.engine]
    high = max(held, min(held * most, cluster.gpu.room))
    low = min(held * least, high * least / most)
    return int(low if held > cluster.gpu.room else max(held, low)), int(high)


def device_bytes(layout: Layout, cluster: Cluster, rank: RankMemory) -> int:
    """Return what nvidia-smi will show of a rank: reserved memory, the CUDA context and NCCL's buffers."""
    low, high = reserved_bytes(layout, cluster, rank.nbytes + rank.apart)
    return (low + high) // 2 + CONTEXT + (COMMUNICATORS if layout.ranks > 1 else 0)


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
    tell("assembling the schedule")
    order = orders(layout)
    stages = [stage_runs[kind] for kind in kinds]
    ranks = [
        rank_memory(layout, order[rank], {s: stages[s] for s in range(rank, len(kinds), layout.pipeline)})
        for rank in range(layout.pipeline)
    ]
    if layout.deepspeed:
        for number, rank in enumerate(ranks):
            add_update_of_deepspeed(rank, layout, stages[number :: layout.pipeline])
    if layout.uses_transformer_engine:
        for number, rank in enumerate(ranks):
            add_workspaces(rank, layout, cluster.gpu)
            add_standing(rank, layout, number)
            share_dummies(rank, layout, kinds[number :: layout.pipeline])
        add_unsplit(ranks, layout, order, stages)
    time = StepTime(layout, cluster, rates, order, stages)
    low, high = (time.seconds * factor for factor in rates.interval_of(layout.arch.experts))
    return LayoutPlan(
        layout,
        cluster,
        ranks,
        time.seconds,
        low,
        high,
        time.parts,
        time.spans,
        time.flops,
        time.timings,
        time.reduced,
    )


def stage_kinds(layout: Layout) -> list[StageKind]:
    """Return what each stage of a layout consists of."""
    stages = layout.stage_layers()
    kinds = []
    for number, layers in enumerate(stages):
        mixed = sum(map(layout.arch.is_second, layers))
        kinds.append(StageKind(len(layers) - mixed, mixed, number == 0, number == len(stages) - 1))
    return kinds
