"""The single changes to a run that help most: each is planned alone, with the same tokens in a step."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ..core.units import GiB
from .catalog.clusters import Cluster
from .config import RecipeError, TrainingConfig

MOST = 3
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """What a run needs: bytes of its fullest rank, tokens per second of one GPU, and whether it fits."""

    nbytes: int
    speed: float
    fits: bool


@dataclass(frozen=True)
class Change:
    """A single change, and what comes of it.

    Attributes:
        name: what is changed, in words.
        outcome: of the changed run.
        nbytes, speed: by how many bytes it needs more, and by which share it is faster.
    """

    name: str
    outcome: Outcome
    nbytes: int
    speed: float

    def __str__(self) -> str:
        now = "" if self.outcome.fits else ", does not fit"
        return f"{self.name}: {self.nbytes / GiB:+.1f} GiB, {self.speed:+.0%} tokens per second{now}"

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        names = {"change": self.name, "bytes": self.nbytes, "tokens_per_second": self.speed}
        return names | {"fits": self.outcome.fits}


def best_changes(now: Outcome, variants: Iterator[tuple[str, Any]], outcome: Callable[[Any], Outcome]) -> list[Change]:
    """Return the changes that help most, the best first.

    Where the run fits, those are helpful that make it faster and leave it fitting; else those that make it fit, the
    fastest first, and then those that save most. Changes that help nothing are left out.
    """
    found = []
    for name, variant in variants:
        try:
            result = outcome(variant)
        except RecipeError:
            continue
        found.append(Change(name, result, result.nbytes - now.nbytes, result.speed / now.speed - 1))
    if now.fits:
        helpful = [each for each in found if each.outcome.fits and each.speed > 0.005]
        return sorted(helpful, key=lambda each: -each.speed)[:MOST]
    helpful = [each for each in found if each.nbytes < 0]
    order = lambda each: (not each.outcome.fits, -each.speed if each.outcome.fits else each.nbytes)  # noqa: E731
    return sorted(helpful, key=order)[:MOST]


def outcome_of_layout(layout: Any, cluster: Cluster) -> Outcome:
    """Plan a layout and return what it needs.

    Raises:
        RecipeError: it cannot be planned.
    """
    from .layout.layout_plan import plan_layout

    return outcome_of_plan(plan_layout(layout, cluster))


def outcome_of_plan(plan: Any) -> Outcome:
    """Return what a planned layout needs."""
    return Outcome(plan.worst.nbytes, plan.tokens_per_second, plan.fits)


def outcome_of_config(config: TrainingConfig, cluster: Cluster) -> Outcome:
    """Plan a model of Hugging Face's library and return what it needs.

    Raises:
        RecipeError: it cannot be planned.
    """
    from .plan import plan_over

    return outcome_of_recipe(plan_over(config, cluster), cluster)


def outcome_of_recipe(plan: Any, cluster: Cluster) -> Outcome:
    """Return what a planned model of Hugging Face's library needs; without a forecast all runs are equally fast."""
    forecast, name = plan.forecasts.get(cluster.gpu.name), cluster.gpu.name
    return Outcome(plan.peak_allocated_bytes, forecast.per_second if forecast else 1.0, plan.fits[name])


def of_layout(layout: Any, cluster: Cluster, fits: bool) -> Iterator[tuple[str, Any]]:
    """Return layouts that differ from one in a single thing, each with its words: to be faster, or to fit."""
    yield from _made(layout, (_faster(layout) if fits else _leaner(layout)) + _ranks(layout, cluster))


def _faster(layout: Any) -> list[tuple[str, dict[str, Any]]]:
    size, count = layout.micro_batch_size, layout.micro_batches
    return _where(
        (layout.recompute != "none", "no recomputation", {"recompute": "none", "recompute_every": 1}),
        (
            count % 2 == 0,
            f"micro-batches of {2 * size}",
            {"micro_batch_size": 2 * size, "micro_batches": count // 2},
        ),
        (layout.attention == "eager", "fused attention", {"attention": "fused"}),
        (not layout.compile, "compiled blocks", {"compile": True}),
        (
            layout.zero == "zero3" and layout.reshard_after_forward,
            "gathered parameters kept until the backward pass",
            {"reshard_after_forward": False},
        ),
    )


def _leaner(layout: Any) -> list[tuple[str, dict[str, Any]]]:
    size, count = layout.micro_batch_size, layout.micro_batches
    zero = "zero1" if layout.engine == "megatron" else "zero3"
    return _where(
        (
            layout.recompute != "full" or layout.recompute_every > 1,
            "every block recomputed",
            {"recompute": "full", "recompute_every": 1},
        ),
        (
            size % 2 == 0,
            f"micro-batches of {size // 2}",
            {"micro_batch_size": size // 2, "micro_batches": 2 * count},
        ),
        (layout.attention == "eager", "fused attention", {"attention": "fused"}),
        (
            layout.tensor > 1 and not layout.sequence_parallel,
            "sequence parallelism",
            {"sequence_parallel": True},
        ),
        (layout.zero == "none", "ZeRO-1" if zero == "zero1" else "FSDP", {"zero": zero}),
    )


def _where(*changes: tuple[bool, str, dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    return [(words, change) for applies, words, change in changes if applies]


def _ranks(layout: Any, cluster: Cluster) -> list[tuple[str, dict[str, Any]]]:
    changes: list[tuple[str, dict[str, Any]]] = []
    for name, words in (("tensor", "tensor ranks"), ("pipeline", "stages"), ("context", "context ranks")):
        ranks = getattr(layout, name)
        most = cluster.node if name == "tensor" else layout.ranks
        if layout.shard % 2 == 0 and 2 * ranks <= most:
            changes.append((f"{2 * ranks} {words}", _moved(layout, name, 2 * ranks)))
        if ranks % 2 == 0:
            changes.append((f"{ranks // 2} {words}", _moved(layout, name, ranks // 2)))
    return changes


def _moved(layout: Any, name: str, ranks: int) -> dict[str, Any]:
    """Return the changes by which ranks come from the data dimension, or go there; a step keeps its tokens."""
    before = getattr(layout, name)
    change = {name: ranks, "shard": layout.shard * before // ranks}
    change["micro_batches"] = layout.micro_batches * ranks // before
    if name == "tensor":
        change["tensor_overlap"] = layout.tensor_overlap and ranks > 1
    if name == "pipeline" and ranks == 1:
        change |= {"schedule": "1f1b", "virtual_stages": 1, "micro_batch_group": 0}
    return change


def _made(layout: Any, changes: list[tuple[str, dict[str, Any]]]) -> Iterator[tuple[str, Any]]:
    for words, change in changes:
        try:
            yield words, replace(layout, **change)
        except RecipeError:
            continue


def of_config(config: TrainingConfig, fits: bool) -> Iterator[tuple[str, TrainingConfig]]:
    """Return runs that differ from one in a single thing, each with its words: to be faster, or to fit."""
    size, count = config.micro_batch_size, config.gradient_accumulation_steps
    narrow = config.precision in ("fp32", "bf16-amp"), "weights in BF16", {"precision": "bf16"}
    eager = config.attention == "eager", "fused attention", {"attention": "sdpa"}
    # The forecast fuses whole graphs. Whether there are such depends on the version of bitsandbytes.
    caveat = " (measure it: bitsandbytes' layers may split the graph)" if config.quantize != "none" else ""
    compiled = f"torch.compile{caveat}"
    if fits:
        changes = _where(
            (config.checkpointing != "none", "no recomputation", {"checkpointing": "none"}),
            (
                count % 2 == 0,
                f"micro-batches of {2 * size}",
                {"micro_batch_size": 2 * size, "gradient_accumulation_steps": count // 2},
            ),
            (not config.compile, compiled, {"compile": True}),
            narrow,
            eager,
        )
    else:
        whole = {"shard": config.ranks, "replicate": 1, "zero": "zero3"}
        lean = {"optimizer": "adamw-8bit", "optimizer_impl": "foreach"}
        changes = _where(
            (config.checkpointing != "every", "every block recomputed", {"checkpointing": "full"}),
            (
                size % 2 == 0,
                f"micro-batches of {size // 2}",
                {"micro_batch_size": size // 2, "gradient_accumulation_steps": 2 * count},
            ),
            (config.optimizer == "adamw", "AdamW with 8-bit state", lean),
            narrow,
            eager,
            (
                config.ranks > 1 and config.shard != "zero3",
                "FSDP over all ranks",
                {"parallel": replace(config.parallel, **whole)},
            ),
        )
    yield from _made(config, changes)
