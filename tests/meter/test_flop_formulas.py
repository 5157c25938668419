"""FLOPs of operations that only some devices have: as many as of the products that they stand for."""

from helpers import FLOP_FORMULAS

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

aten = torch.ops.aten


@pytest.mark.parametrize("wanted", [(True, True, True), (False, True, True), (True, False, False)])
def test_linear_backward_counts_the_products_of_other_devices(wanted):
    layer, x = nn.Linear(6, 10), torch.randn(2, 5, 6, requires_grad=wanted[0])
    layer.weight.requires_grad_(wanted[1])
    layer.bias.requires_grad_(wanted[2])
    y = layer(x)
    with FlopCounterMode(display=False) as counter:
        y.sum().backward()
    with FlopCounterMode(display=False, custom_mapping=FLOP_FORMULAS):  # it takes the mapping
        pass
    one_operation = FLOP_FORMULAS[aten.linear_backward](x.shape, y.shape, layer.weight.shape, wanted, out_shape=None)
    assert one_operation == counter.get_total_flops() > 0
