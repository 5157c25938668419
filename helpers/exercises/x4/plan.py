"""Checks of part 3: the plan, which the planner judges outside of the learner's code."""

import functools
from typing import Any

from ...core.units import GiB
from ...planner import Recipe, RecipeError, find_gpu, plan
from ..base import Check, Evidence
from .small_llama import ALL_LINEAR

GPU = "rtx-4090-24gb"
EFFECTIVE = 32
WHOLE = ("micro_batch_size", "gradient_accumulation_steps", "seq", "lora_rank")
FREE = ("checkpointing", "lora_alpha", "lora_targets", "optimizer_impl", *WHOLE)  # the task asks for some of these


@functools.lru_cache(maxsize=16)
def _planned(recipe: Recipe) -> tuple[bool, int, tuple[int, int]]:
    """Return whether the planner lets `recipe` onto the GPU, its peak, and what the allocator may reserve for it."""
    result = plan(recipe)
    return result.fits[GPU], result.peak_allocated_bytes, result.reserved_bytes


def _recipe(seen: Evidence) -> Recipe:
    return Recipe(
        **{name: tuple(value) if isinstance(value, list) else value for name, value in seen["recipe"].items()}
    )


def _plan_evidence(fine_tune_plan: Any) -> Evidence:
    recipe = fine_tune_plan()
    if not isinstance(recipe, Recipe):
        raise TypeError(f"fine_tune_plan returned a {type(recipe).__name__}; it must return a Recipe")
    return {"recipe": recipe.changed()}


def _wrong_task(recipe: Recipe) -> str | None:
    """Say what of the task the recipe has changed."""
    asked = {
        "model": "llama-2-7b", "precision": "bf16", "optimizer": "adamw", "lora_rank": 16, "quantize": "none",
        "ranks": 1, "offload": "none",
    }  # fmt: skip
    for name in WHOLE:
        value = getattr(recipe, name)
        if type(value) is not int:
            return f"{name} is {value!r}, a {type(value).__name__}; it should be an int."
    for name, value in asked.items():
        if getattr(recipe, name) != value:
            return f"{name} is {getattr(recipe, name)!r}; the task asks for {value!r}."
    for name in ("method", "dora", "modules_to_save", "freeze", "train_only"):
        value, default = getattr(recipe, name), getattr(Recipe(recipe.model), name)
        if value != default:
            return f"{name} is {value!r}; the task trains LoRA's A and B on next tokens, and nothing else."
    if recipe.lengths:
        return f"lengths are {tuple(recipe.lengths)}; all sequences of the task have the same length, `seq`."
    for name in recipe.changed():
        if name not in FREE and name not in asked:
            default = getattr(Recipe(recipe.model), name)
            return f"{name} is {getattr(recipe, name)!r}; the task leaves it at its default, {default!r}."
    if set(recipe.lora_targets) != set(ALL_LINEAR[:4]):
        return f"lora_targets are {', '.join(recipe.lora_targets) or 'none'}; the task asks for q, k, v and o."
    if recipe.seq not in (512, 1024, 2048, 4096):
        return f"seq is {recipe.seq}; the task allows 512, 1024, 2048 and 4096."
    sequences, steps = recipe.micro_batch_size, recipe.gradient_accumulation_steps
    if sequences * steps != EFFECTIVE:
        return (
            f"micro_batch_size {sequences} times gradient_accumulation_steps {steps} is {sequences * steps}, not "
            f"{EFFECTIVE}."
        )
    return None


class PlanFits(Check):
    """The plan is for the given task, has an effective batch of 32, fits a 24 GB GPU, and makes full use of it."""

    points = 1
    hint = (
        "plan(recipe) shows the bytes allocated, the bytes that would be reserved, and the GPUs that the recipe fits. "
        "What do micro_batch_size, seq and checkpointing cost? Double the tokens until the recipe no longer fits."
    )

    @staticmethod
    def probe(seed: int, fine_tune_plan: Any) -> Evidence:
        return _plan_evidence(fine_tune_plan)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        try:
            recipe, wanted = _recipe(seen), _recipe(expected)
            wrong = _wrong_task(recipe)
            if wrong or recipe == wanted:  # a test plans the reference's recipe
                return wrong
            fits, peak, reserved = _planned(recipe)
        except RecipeError as error:
            return f"The planner refuses this recipe: {error}"
        if fits:
            got, best = (each.micro_batch_size * each.seq for each in (recipe, wanted))
            room = got < best and _planned(wanted)[0]
            return f"A micro-batch has {got:,} tokens; {best:,} would fit." if room else None
        total, low, high = (n / GiB for n in (find_gpu(GPU).total, *reserved))
        diagnosis = (
            f"The peak is {peak / GiB:.1f} GiB of allocated memory, and the allocator would reserve {low:.1f} to "
            f"{high:.1f}"
        )
        diagnosis += f" GiB. {GPU} has {total:.1f} GiB, including the CUDA context."
        return (
            diagnosis
            if peak / GiB > total
            else f"{diagnosis} The recipe does not fit even if the allocator frees its cache."
        )


PLAN = (PlanFits,)
