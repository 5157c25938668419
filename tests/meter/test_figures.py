"""Figures of memory."""

from helpers import CATEGORIES, category_bars
from helpers.core.notebook import to_png
from helpers.meter.figures import memory_timeline

from .profiles import small_and_large


def test_figures_render():
    profiles = small_and_large()
    bars = category_bars({name: profile.at_peak for name, profile in profiles.items()}, CATEGORIES, "t")
    timeline = memory_timeline(profiles["small"].timeline, CATEGORIES, "t")
    for figure in (bars, timeline):
        assert to_png(figure).startswith(b"\x89PNG")
    assert to_png(bars) == to_png(bars)
