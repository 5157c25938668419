"""The picture of what autocast casts: its words are what was seen."""

from helpers import cast_path
from helpers.core.notebook import to_png

import pytest
import torch
import torch.nn.functional as F
from torch import nn


def words(figure):
    return [text.get_text() for text in figure.axes[0].texts if text.get_text()]


@pytest.mark.parametrize(("dtype", "name"), [(torch.bfloat16, "BF16"), (torch.float16, "FP16")])
def test_it_draws_the_dtypes_that_were_seen(dtype, name):
    operations = [
        ("linear", nn.Linear(8, 8)),
        ("ReLU", nn.ReLU()),
        ("loss", lambda y: F.cross_entropy(y, y.argmax(1))),
    ]
    figure = cast_path(operations, torch.randn(4, 8), dtype)
    seen = words(figure)
    boxes = [text for text in seen if "\n" in text]
    assert boxes == [f"linear\nin {name}", "weight\nFP32", f"ReLU\nin {name}", "loss\nin FP32"]
    assert seen.count("cast") == 3  # the input, the weight, and what goes into the loss
    assert to_png(figure)


def test_what_autocast_leaves_alone_has_no_cast():
    figure = cast_path([("ReLU", nn.ReLU())], torch.randn(4, 8), torch.bfloat16)
    assert "cast" not in words(figure)
