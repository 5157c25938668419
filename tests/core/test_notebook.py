"""Pictures as notebooks get them."""

import io

from helpers import COLORS, show
from helpers.core import notebook
from helpers.core.notebook import size_on_page, to_png

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image


@pytest.fixture
def figure():
    figure = Figure(figsize=(5, 2))
    axes = figure.add_axes((0, 0, 1, 1), frameon=False)
    axes.bar(range(len(COLORS)), np.ones(len(COLORS)), color=COLORS, width=1)
    return figure


def test_a_picture_has_twice_the_pixels_that_it_takes_on_a_page(figure):
    size = size_on_page(figure)
    assert size == {"width": 400, "height": 160}
    assert Image.open(io.BytesIO(to_png(figure))).size == (800, 320)


def test_colors_stay_what_they_were(figure):
    pixels = np.asarray(Image.open(io.BytesIO(to_png(figure))).convert("RGB")).reshape(-1, 3).astype(int)
    for color in COLORS:
        wanted = np.array(to_rgb(color)) * 255
        assert np.abs(pixels - wanted).max(1).min() <= 8


def test_the_same_figure_makes_the_same_bytes(figure):
    assert to_png(figure) == to_png(figure)


def test_a_notebook_gets_the_size_and_the_words(figure, monkeypatch):
    shown = []
    monkeypatch.setattr(notebook, "in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda data, raw, metadata: shown.append((data, metadata)))
    show(figure, "eight bars")
    ((data, metadata),) = shown
    assert metadata["image/png"] == {"alt": "eight bars", "width": 400, "height": 160}
    assert data["text/plain"] == "eight bars"
