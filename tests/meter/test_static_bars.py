"""The picture of what stays from step to step."""

from helpers import static_bars
from helpers.core.notebook import to_png

import pytest


def test_a_bar_is_weights_gradients_and_state():
    figure = static_bars({"SGD": 0.0, "AdamW": 8.0})
    axes = figure.axes[0]
    ends = [bar.get_x() + bar.get_width() for bar in axes.containers[-1]]
    assert ends == pytest.approx([8, 16])
    assert [text.get_text() for text in axes.texts] == ["8.0", "16.0"]
    assert to_png(figure)
