"""What goes through linear layers."""

from helpers import LinearLog

import torch


def test_linear_log_sees_inputs_weights_and_gradients_of_each_step():
    layer = torch.nn.Linear(3, 2)
    log = LinearLog(keep=(1,))
    log.attach({"layer": layer})
    for size in (1.0, 2.0):
        (layer(torch.full((4, 5, 3), size)) * size).sum().backward()
    assert log.amaxes["layer", "x"] == log.amaxes["layer", "g"] == [1.0, 2.0]
    assert len(log.amaxes["layer", "w"]) == 2
    assert {key: tuple(tensor.shape) for key, tensor in log.tensors.items()} == {
        (1, "layer", "x"): (20, 3),
        (1, "layer", "w"): (2, 3),
        (1, "layer", "g"): (20, 2),
    }
