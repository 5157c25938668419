"""Picture of an allocator's segments: as many MiB in use, free and never bought as the allocator has."""

from collections import Counter

from helpers import CachingAllocator, MiB, segments_figure

import pytest
from matplotlib.colors import to_hex


@pytest.mark.parametrize("expandable", [False, True])
def test_widths_are_those_of_the_allocator(expandable):
    allocator = CachingAllocator(100 * MiB, expandable)
    blocks = [allocator.allocate(5 * MiB) for _ in range(16)]
    for block in blocks[1::2]:
        allocator.release(block)
    (axes,) = segments_figure({"one": blocks[::2]}, 100 * MiB, 24 * MiB).axes
    widths = Counter()
    for bar in axes.patches:
        widths[to_hex(bar.get_facecolor())] += bar.get_width()
    assert sorted(widths.values()) == [20, 24, 40, 40]  # never bought, wanted, in use and free
    beginnings = [line.get_xdata()[0] for line in axes.lines]
    assert beginnings == ([0] if expandable else [0, 20, 40, 60])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["one", "wanted"]
