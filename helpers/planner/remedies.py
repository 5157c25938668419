"""What to change in a recipe that does not fit: candidates, the least trouble first, and what each one saves."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from .config import RecipeError, TrainingConfig

if TYPE_CHECKING:
    from .plan import Plan

WORTHWHILE = 0.995  # a remedy lowers the peak at least to this share


def candidates(recipe: TrainingConfig) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what could be changed, the least trouble first: (description, changed fields)."""
    if recipe.attention == "eager":
        yield "fused attention (--attention sdpa): same numbers", {"attention": "sdpa"}
    if recipe.optimizer in ("adamw", "adam") and recipe.optimizer_impl == "foreach":
        yield "fused optimizer (--optimizer-impl fused): same numbers", {"optimizer_impl": "fused"}
    if recipe.micro_batch_size > 1:
        steps = recipe.micro_batch_size * recipe.gradient_accumulation_steps
        options = f"--micro-batch-size 1 --gradient-accumulation-steps {steps}"
        change = {"micro_batch_size": 1, "gradient_accumulation_steps": steps}
        yield f"{options}: same gradient, but for BatchNorm", change
    if recipe.checkpointing != "every":
        yield "--activation-checkpointing full: same gradient, more time", {"checkpointing": "every"}
    if recipe.gradient_accumulation_steps == 1 and recipe.set_to_none:
        yield "--step-in-backward: same numbers, no gradient clipping", {"step_in_backward": True}
    if recipe.precision == "fp32":
        yield "--precision bf16-amp: 16-bit activations", {"precision": "bf16-amp"}
    if recipe.optimizer in ("adamw", "adam") and not recipe.lora_rank:
        change = {"optimizer": "adamw-8bit", "optimizer_impl": "foreach"}
        yield "--optimizer adamw-8bit: 8-bit moments", change
    if recipe.optimizer == "adamw-8bit" and recipe.offload == "none":
        yield "--optimizer adamw-8bit-paged: moments leave when there is no room", {"optimizer": "adamw-8bit-paged"}
    if recipe.offload == "none":
        yield "--offload optimizer: slower", {"offload": "optimizer"}
    if recipe.ranks > 1 and recipe.shard != "zero3":
        parallel = replace(recipe.parallel, zero="zero3")
        yield "--zero-stage 3: more communication", {"parallel": parallel, "set_to_none": True}
    if not recipe.lora_rank:
        yield "LoRA (--lora-rank 16): trains adapters only", {"lora_rank": 16}
    elif recipe.quantize == "none" and recipe.precision != "fp32":
        yield "--quantize nf4-dq: a 4-bit base", {"quantize": "nf4-dq"}
    if recipe.precision in ("fp32", "fp16-amp", "bf16-amp"):
        yield "--precision bf16: 16-bit weights too", {"precision": "bf16"}
    if recipe.seq > 128:
        yield f"--seq {recipe.seq // 2}: shorter sequences", {"seq": recipe.seq // 2}


def try_remedies(base: "Plan", plan_one: Callable[[TrainingConfig], "Plan"]) -> list[dict[str, Any]]:
    """Return the changes that lower the peak: those that suffice alone first, in order of trouble.

    Args:
        base: the plan that does not fit.
        plan_one: plans a changed recipe for the same GPUs.
    """
    remedies = []
    for description, change in candidates(base.recipe):
        try:
            result = plan_one(replace(base.recipe, **change))
        except RecipeError:
            continue  # it cannot be combined with the rest of the recipe, or with the model
        if result.peak_allocated_bytes < WORTHWHILE * base.peak_allocated_bytes:
            remedies.append(
                {
                    "change": description,
                    "peak_allocated_bytes": result.peak_allocated_bytes,
                    "reserved_bytes": result.reserved_bytes,
                    "fits": all(result.fits.values()),
                    "recipe": asdict(result.recipe),
                }
            )
    return sorted(remedies, key=lambda remedy: not remedy["fits"])
