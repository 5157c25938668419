"""The figure of magnitudes beside a format's range."""

from helpers import range_ruler
from helpers.core.notebook import to_png

import torch


def test_range_ruler_renders():
    sizes = torch.logspace(-8, 2, 50).numpy()
    assert to_png(range_ruler(sizes, (2**-9, 2**-6, 448), "a format", (-30, 20)))
