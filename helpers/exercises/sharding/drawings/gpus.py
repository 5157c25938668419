"""Drawing: what a 7B model takes on one rank, beside the sizes of common GPUs."""

from typing import TYPE_CHECKING

from ....core.colors import COLORS
from ....core.units import GiB
from ....planner import find_gpu
from .shards import CATEGORIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARAMETERS = 6.74e9


def gpus_figure(stage: str, ranks: int, activations_in_GiB: float) -> "Figure":
    """Draw one bar: parameters, gradients and optimizer state in FP32 at `stage` ("DDP", "ZeRO-1", ...) on a rank."""
    from matplotlib.figure import Figure

    number = 0 if stage == "DDP" else int(stage[-1])
    figure = Figure(figsize=(7, 1.9), layout="constrained")
    axes = figure.add_subplot()
    left = 0.0
    for (category, each, sharded_from), color in zip(CATEGORIES, COLORS, strict=False):
        size = PARAMETERS * each / GiB / (ranks if number >= sharded_from else 1)
        axes.barh("one rank", size, left=left, color=color, label=category)
        left += size
    axes.barh("one rank", activations_in_GiB, left=left, color=COLORS[4], label="activations")
    for name, line in (("rtx-4090-24gb", ":"), ("h100-80gb", "--")):
        axes.axvline(find_gpu(name).total / GiB, color="black", ls=line, label=name)
    total = left + activations_in_GiB
    axes.set(title=f"7B, FP32, Adam; {stage}, {ranks} ranks: {total:.1f} GiB each", xlabel="GiB", xlim=(0, 150))
    figure.legend(loc="outside right upper", frameon=False)
    return figure
