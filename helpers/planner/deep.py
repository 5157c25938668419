"""Plan a deep model from two shallow copies of it.

The layers of a language model are alike, so what a phase of a training step needs grows by the same amount with each of
them. Two plans of a few layers give that amount, and the line through them the whole model, in a fraction of the time.

A peak is the highest of several phases, and the highest of several lines is no line: with three layers the logits may
be on top, with thirty the optimizer. So each phase has a line of its own. Where the peak of the phase that wins moves
from one operation to another between the two copies, no line can be trusted: deeper copies are planned, and if these
differ, too, there is no answer.
"""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .catalog.gpus import GPUS, Gpu
from .catalog.models import find_model
from .config import RecipeError, TrainingConfig
from .plan import Plan, plan_many

SHORT, DEEPER = (3, 6), (6, 12)  # layers; with fewer, embedding and head make the peak


@dataclass(frozen=True)
class DeepPlan:
    """What a recipe will need, on one GPU.

    Attributes:
        allocated_bytes: the peak.
        reserved_bytes: what the allocator may reserve for it, at the upper end.
        phase: in which the peak is reached.
        flops: of one optimizer step.
        micro_batch_traffic_bytes, update_traffic_bytes: memory traffic for each micro-batch, and once a step.
    """

    recipe: TrainingConfig
    allocated_bytes: int
    reserved_bytes: int
    phase: str
    flops: int
    micro_batch_traffic_bytes: int
    update_traffic_bytes: int

    def roofline_seconds(self, gpu: Gpu, micro_batches: int | None = None) -> float:
        """Return the least seconds of a step of so many `micro_batches` (default: the recipe's).

        FLOPs and the traffic of a micro-batch grow with their number; the optimizer's traffic comes once.
        """
        planned = self.recipe.gradient_accumulation_steps
        n = planned if micro_batches is None else micro_batches
        traffic = n * self.micro_batch_traffic_bytes + self.update_traffic_bytes
        return gpu.roofline_seconds(self.flops * n / planned, traffic, self.recipe.precision)

    @property
    def seconds(self) -> dict[str, float]:
        """The same bound for each GPU of the catalog."""
        return {name: self.roofline_seconds(gpu) for name, gpu in GPUS.items()}


def plan_deep(recipes: Sequence[TrainingConfig], progress: bool = False) -> list[DeepPlan]:
    """Plan each of `recipes`, all for Hugging Face models of the catalog, from copies of 3 and of 6 layers.

    Raises:
        RecipeError: a model that has no number of layers to change, or one whose peak moves as it grows deeper.
    """
    lines = [_line(*each) for each in _pairs(recipes, SHORT, progress)]
    unsure = [i for i, line in enumerate(lines) if line is None]
    again = _pairs([recipes[i] for i in unsure], DEEPER, progress) if unsure else []
    for i, each in zip(unsure, again, strict=True):
        lines[i] = _line(*each)
        if lines[i] is None:
            raise RecipeError(f"{each[0].summary}: the peak moves as the model grows deeper; plan it as it is.")
    return lines


def _pairs(recipes: Sequence[TrainingConfig], short: tuple[int, int], progress: bool) -> list[tuple]:
    """Return (recipe, depth, the two depths planned, their two plans) for each recipe."""
    depths, shallow = [], []
    with tempfile.TemporaryDirectory() as folder:
        for recipe in recipes:
            config = find_model(recipe.model).config
            shape = config.to_dict() if config is not None else {}
            if "num_hidden_layers" not in shape:
                raise RecipeError(f"{recipe.model} has no num_hidden_layers: plan it as it is.")
            depths.append(shape["num_hidden_layers"])
            for layers in short:
                path = Path(folder) / f"{recipe.model}-{layers}.json"
                path.write_text(json.dumps(shape | {"num_hidden_layers": layers, "layer_types": None}))
                shallow.append(replace(recipe, model=str(path)))
        plans = plan_many(shallow, progress=progress)
    return [
        (recipe, depth, short, *two)
        for recipe, depth, *two in zip(recipes, depths, plans[::2], plans[1::2], strict=True)
    ]


def _line(recipe: TrainingConfig, depth: int, short: tuple[int, int], few: Plan, more: Plan) -> DeepPlan | None:
    """Return the plan at `depth`; None where the two plans peak in different places."""

    def at_depth(a: float, b: float) -> int:
        return int(a + (b - a) / (short[1] - short[0]) * (depth - short[0]))

    peaks = {
        phase: (at_depth(few.peaks[phase][0], peak), few.peaks[phase][1] == op)
        for phase, (peak, op) in more.peaks.items()
        if phase in few.peaks
    }
    phase = max(peaks, key=lambda name: peaks[name][0])
    allocated, same_place = peaks[phase]
    if not same_place:
        return None
    spread = more.reserved_bytes[1] / more.peak_allocated_bytes
    return DeepPlan(
        recipe,
        allocated,
        int(allocated * spread),
        phase,
        at_depth(few.flops, more.flops),
        at_depth(few.micro_batch_traffic_bytes, more.micro_batch_traffic_bytes),
        at_depth(few.update_traffic_bytes, more.update_traffic_bytes),
    )
