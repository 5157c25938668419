"""What rows of equal length hold: one document and padding, or documents end to end."""

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from torch import Tensor

from ..core.colors import COLORS

_PADDING = "#E6E6E6"
_TINTS = (COLORS[0], COLORS[1], COLORS[2])  # neighbors differ


def padded_and_packed(lengths: np.ndarray, document: Tensor) -> Figure:
    """Draw the same documents twice, in as many rows: one a row with padding behind it, and packed.

    Args:
        lengths: (documents,), tokens of each document, in order.
        document: (rows, length), for each packed token the place of its document; below 0 where filled up.
    """
    rows, length = document.shape
    padded = np.where(np.arange(length) < lengths[:rows, None], np.arange(rows)[:, None], -1)  # (rows, length)
    figure = Figure(figsize=(8, 2.6), layout="constrained")
    for axes, name, places in zip(figure.subplots(1, 2), ("padded", "packed"), (padded, document.numpy()), strict=True):
        tints = np.where(places < 0, 0, 1 + places % len(_TINTS))
        axes.imshow(
            tints, ListedColormap([_PADDING, *_TINTS]), vmin=0, vmax=len(_TINTS), aspect="auto", interpolation="none"
        )
        axes.set_yticks(np.arange(1, rows) - 0.5, minor=True)
        axes.grid(axis="y", which="minor", color="white", linewidth=2)
        axes.tick_params(which="both", left=False, labelleft=False)
        began = len(np.unique(places[places >= 0]))
        title = f"{name}: {(places >= 0).mean():.0%} tokens, from {began} documents"
        axes.set(title=title, xlabel="token of the row", ylabel=f"{rows} rows")
    return figure
