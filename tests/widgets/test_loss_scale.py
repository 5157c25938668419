"""The loss-scale explorer: what becomes of gradients in FP16."""

from helpers.widgets.loss_scale import fate_of, loss_scale_figure

import torch


def test_fate_of_gradients_adds_up_and_follows_the_scale():
    gradient = torch.tensor([0.0, 1.0, 2.0**-20, 2.0**-30, 2.0**10])
    share = fate_of(gradient, 1.0)
    assert share == {"kept": 0.5, "blurred": 0.25, "lost": 0.25, "overflowed": 0.0}
    assert fate_of(gradient, 2.0**8) == {"kept": 0.5, "blurred": 0.25, "lost": 0.0, "overflowed": 0.25}
    figure = loss_scale_figure(gradient, 8)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "becomes inf: 25.0%" in labels
