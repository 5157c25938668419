"""A picture of what autocast casts: which dtype flows from operation to operation, and which each computes in."""

from collections.abc import Callable, Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..core.colors import COLORS

_COLOR = {torch.float32: COLORS[0], torch.bfloat16: COLORS[1], torch.float16: COLORS[1]}
_NAME = {torch.float32: "FP32", torch.bfloat16: "BF16", torch.float16: "FP16"}
_STEP, _WIDTH = 2.4, 1.3  # from box to box, and of a box


def cast_path(
    operations: Sequence[tuple[str, Callable[[torch.Tensor], torch.Tensor]]], x: torch.Tensor, dtype: torch.dtype
) -> Figure:
    """Run `x` through `operations` under autocast to `dtype`, and draw the dtypes that were seen.

    Args:
        operations: (name, operation) in order. What has parameters is drawn with its weight.
        x: goes into the first one.
        dtype: 16 bits.
    """
    figure = Figure(figsize=(8, 2.6), layout="constrained")
    axes = figure.add_subplot(title="What autocast casts, and what it leaves as it is")
    arrow = {"arrowstyle": "-|>", "lw": 2.5, "shrinkA": 0, "shrinkB": 0}
    for number, (name, operation) in enumerate(operations):
        left, given = number * _STEP, x.dtype
        with torch.autocast(x.device.type, dtype=dtype), torch.no_grad():
            x = operation(x)
        computes = x.dtype
        if given != computes:
            axes.text(left - 0.6, 0.16, "cast", ha="center", style="italic")
        for place, color in ((left - 1.1, _COLOR[given]), (left - 0.55, _COLOR[computes])):
            axes.annotate("", (left, 0), (place, 0), arrowprops=arrow | {"color": color})
        axes.text(left - 0.6, -0.3, _NAME[given], ha="center", color=_COLOR[given], fontsize=9)
        _box(axes, left, 0, f"{name}\nin {_NAME[computes]}", _COLOR[computes])
        weight = next(operation.parameters(), None) if isinstance(operation, torch.nn.Module) else None
        if weight is not None:
            _box(axes, left, 1.5, f"weight\n{_NAME[weight.dtype]}", _COLOR[weight.dtype])
            middle = left + _WIDTH / 2
            for top, color in ((1.15, _COLOR[weight.dtype]), (0.75, _COLOR[computes])):
                axes.annotate("", (middle, 0.35), (middle, top), arrowprops=arrow | {"color": color})
            axes.text(middle + 0.12, 0.68, "cast", style="italic")
    end = len(operations) * _STEP - _STEP + _WIDTH
    axes.annotate("", (end + 0.9, 0), (end, 0), arrowprops=arrow | {"color": _COLOR[x.dtype]})
    axes.text(end + 0.4, -0.3, _NAME[x.dtype], ha="center", color=_COLOR[x.dtype], fontsize=9)
    axes.set(xlim=(-1.3, end + 1.1), ylim=(-0.6, 2))
    axes.axis("off")
    return figure


def _box(axes: Axes, left: float, height: float, text: str, color: str) -> None:
    axes.barh(height, _WIDTH, left=left, height=0.7, color=color)
    letters = "black" if color == COLORS[1] else "white"
    axes.text(left + _WIDTH / 2, height, text, ha="center", va="center", color=letters, fontsize=9)
