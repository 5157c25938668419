"""The README's picture: who holds memory during two steps of GPT-2, as the planner sees it.

It is drawn from a simulation, so it is the same on every machine. `python -m helpers.course.build.picture` writes it.
"""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from ...core.colors import COLORS
from ...core.units import GiB
from ...meter.categories import CATEGORIES
from ...meter.count import Block
from ...planner.recipe import Recipe
from ...planner.simulate import simulate
from .front_page import DOCS

PICTURE = DOCS / "images" / "step.svg"
RECIPE = Recipe("gpt2", precision="fp32", micro_batch_size=4, gradient_accumulation_steps=2, seq=512)
POINTS = 400  # enough for the eye


def held_over_time(blocks: list[Block]) -> np.ndarray:
    """Return the bytes that each category holds at up to `POINTS` moments: (categories, moments)."""
    last = max(block.end or block.start for block in blocks)
    changes: Counter = Counter()
    for block in blocks:
        category = CATEGORIES.index(block.category)
        changes[category, block.start] += block.nbytes
        if block.end is not None:
            changes[category, block.end] -= block.nbytes
    held = np.zeros((len(CATEGORIES), last + 1))
    for (category, moment), nbytes in changes.items():
        held[category, moment] = nbytes
    held = held.cumsum(axis=1)
    edges = np.unique(np.linspace(0, last + 1, POINTS + 1).astype(int))
    totals = held.sum(axis=0)
    moments = [low + int(totals[low:high].argmax()) for low, high in pairwise(edges)]
    return held[:, moments]  # of each stretch its highest moment, so that no peak is lost


def draw(held: np.ndarray) -> Figure:
    """Draw bytes by category over the course of the two steps."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    axes = figure.add_subplot(title="Two training steps of GPT-2: who holds memory, and when")
    present = [i for i in range(len(CATEGORIES)) if held[i].any()]
    axes.stackplot(
        np.arange(held.shape[1]),
        held[present] / GiB,
        labels=[CATEGORIES[i] for i in present],
        colors=[COLORS[i] for i in present],
    )
    axes.set(
        xlabel="time (counted in allocations); two steps of two micro-batches", ylabel="GiB", xticks=[], ylim=(0, None)
    )
    axes.margins(x=0)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside right upper", frameon=False)
    return figure


def write_picture(path: Path = PICTURE) -> None:
    """Simulate the recipe and write its picture as SVG."""
    with mpl.rc_context({"svg.hashsalt": "step", "svg.fonttype": "none", "font.family": "sans-serif"}):
        draw(held_over_time(simulate(RECIPE).blocks)).savefig(path, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    write_picture()
