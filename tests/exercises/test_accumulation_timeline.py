"""The picture of one accumulated step."""

from helpers import accumulation_timeline
from helpers.core.notebook import to_png

import pytest


@pytest.mark.parametrize("pieces", [1, 2, 4])
def test_each_micro_batch_has_its_passes_and_the_weights_move_once(pieces):
    figure = accumulation_timeline(pieces)
    words = [text.get_text() for text in figure.axes[0].texts]
    assert [word for word in words if word[0] in "FB"] == [f"{p}{i + 1}" for i in range(pieces) for p in "FB"]
    assert (words.count("step"), words.count("new")) == (1, 1)
    assert [word for word in words if "of 1" in word] == ["of 1", "sum of 1–2", "sum of 1–3", "sum of 1–4"][:pieces]
    assert to_png(figure)
