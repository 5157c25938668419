"""Loss-scale explorer: slide a real histogram of gradients through the range of FP16."""

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from ..core.colors import COLORS
from .explore import explore

SMALLEST_SUBNORMAL = -24  # log2 of the smallest positive FP16 number
SMALLEST_NORMAL = -14
LARGEST = 16  # log2 of where FP16 overflows, just above 65504


def fate_of(gradient: Tensor, scale: float) -> dict[str, float]:
    """Return the shares of the nonzero elements of `gradient` that FP16 keeps, blurs, loses or overflows.

    "blurred" elements land among the subnormals, where FP16 has fewer digits the smaller the number is.
    """
    scaled = (gradient[gradient != 0].cpu().double().abs() * scale).half()
    n = max(1, scaled.numel())
    lost, overflowed = (scaled == 0).sum().item(), torch.isinf(scaled).sum().item()
    blurred = ((scaled > 0) & (scaled < 2.0**SMALLEST_NORMAL)).sum().item()
    kept = scaled.numel() - lost - overflowed - blurred
    return {"kept": kept / n, "blurred": blurred / n, "lost": lost / n, "overflowed": overflowed / n}


def loss_scale_figure(gradient: Tensor, log2_scale: int) -> Figure:
    """Draw the histogram of log2 |gradient x 2^log2_scale| over the range of FP16."""
    exponents = torch.log2(gradient[gradient != 0].cpu().double().abs()).numpy() + log2_scale
    share = fate_of(gradient, 2.0**log2_scale)
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    axes = figure.add_subplot()
    bins = np.arange(-60, 41)
    weights = np.full(len(exponents), 100 / max(1, len(exponents)))
    axes.hist(exponents, bins=bins, weights=weights, color=COLORS[0], histtype="stepfilled")  # one shape draws faster
    bands = (
        (-60, SMALLEST_SUBNORMAL - 1, COLORS[4], f"becomes zero: {share['lost']:.1%}"),
        (SMALLEST_SUBNORMAL - 1, SMALLEST_NORMAL, COLORS[1], f"subnormal: {share['blurred']:.1%}"),
        (SMALLEST_NORMAL, LARGEST, COLORS[2], f"full precision: {share['kept']:.1%}"),
        (LARGEST, 40, COLORS[8], f"becomes inf: {share['overflowed']:.1%}"),
    )
    for start, end, color, label in bands:
        axes.axvspan(start, end, color=color, alpha=0.25, label=label)
    axes.set(xlim=(-60, 40), xlabel="log2 of |gradient x loss scale|", ylabel="% of gradients")
    axes.set_title(f"Loss scale 2^{log2_scale}")
    figure.legend(loc="outside right upper", frameon=False)
    return figure


def explore_loss_scale(gradient: Tensor, log2_scale: int = 0) -> None:
    """Show the figure with a slider for the loss scale, from 2^0 to 2^56."""
    explore(
        lambda log2_scale: loss_scale_figure(gradient, log2_scale),
        alt="Histogram of gradient magnitudes over the range of FP16, shifted to the right by the loss scale.",
        log2_scale=(log2_scale, range(0, 57)),
    )
