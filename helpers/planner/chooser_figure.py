"""The chooser's answer as bars: recipes for one model on one GPU, those that fit on top."""

from typing import TYPE_CHECKING

from ..core.colors import COLORS
from ..core.units import GiB
from .chooser import Choice, choose

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def chooser_figure(gpu: str, model: str, tokens: int, sequences: int) -> "Figure":
    """Draw the peak of each recipe, allocated (filled) and reserved, beside the room on `gpu`.

    Args:
        gpu, model: names of the planner's catalogs.
        tokens, sequences: tokens in a sequence, and sequences in an update.
    """
    from matplotlib.figure import Figure

    choices = choose(gpu, model, tokens, sequences)
    figure = Figure(figsize=(9, 4.8), layout="constrained")
    axes = figure.add_subplot()
    most = max(choices[0].room_bytes, *(c.reserved_bytes for c in choices)) / GiB
    for place, c in enumerate(choices):
        reserved = "" if place else "reserved, up to"
        axes.barh(place, c.reserved_bytes / GiB, color="white", edgecolor=COLORS[7], label=reserved)
        axes.barh(place, c.peak_bytes / GiB, color=COLORS[2 if c.fits else 4], label="")
        at = c.reserved_bytes / GiB + 0.01 * most
        axes.text(at, place, _words(c, choices[0].seconds), va="center", fontsize=8, backgroundcolor="white")
    axes.axvline(choices[0].room_bytes / GiB, color="black", ls="--", label=f"room on {gpu}")
    axes.set_yticks(range(len(choices)), [c.name for c in choices])
    axes.invert_yaxis()
    title = f"{model}, {sequences} x {tokens} tokens per update"
    axes.set(title=title, xlabel="GiB at the peak (filled: allocated)", xlim=(0, 1.4 * most))
    figure.legend(frameon=False, loc="outside lower center", ncols=2)
    return figure


def _words(choice: Choice, least: float) -> str:
    if not choice.fits:
        return "at the edge" if choice.peak_bytes <= choice.room_bytes < choice.reserved_bytes else "does not fit"
    return f"{choice.seconds / least:.2f} x the least" + (", BF16 emulated" if choice.emulated else "")
