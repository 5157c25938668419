"""Explorers in a plain script."""

from helpers import explore, explore_loss_scale

import torch


def test_explorers_speak_where_there_is_no_notebook(capsys):
    explore_loss_scale(torch.tensor([1.0, 1e-9]))
    assert "[figure] Histogram" in capsys.readouterr().out
    drawn = []
    explore(lambda a, b: drawn.append((a, b)), "words", a=(1, range(3)), b=("x", ["x", "y"]))
    assert drawn == [(1, "x")]
