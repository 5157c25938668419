"""Products that no CPU could finish in time: their shapes, types and places are right, their numbers are zeros."""

import pytest
import torch
from torch import nn

HERE = torch.device("cuda", 0)
SIDE = 4096


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_giant_product_is_not_computed(dtype):
    x = torch.ones(SIDE, SIDE, device="cuda", dtype=dtype)
    y = x @ x.t()
    assert (y.shape, y.dtype, y.device) == (x.shape, dtype, HERE)
    assert not y.any()
    small = x[:64, :64]
    assert (small @ small).unique().item() == 64


def test_its_gradients_have_the_shape_and_place_of_its_inputs():
    layer, x = nn.Linear(SIDE, SIDE, device="cuda"), torch.ones(SIDE, SIDE, device="cuda", requires_grad=True)
    layer(x).sum().backward()
    for tensor in (x, layer.weight):
        assert tensor.grad.shape == tensor.shape
        assert tensor.grad.device == HERE


def test_a_giant_product_writes_to_out():
    x, out = torch.ones(SIDE, SIDE, device="cuda"), torch.ones(SIDE, SIDE, device="cuda")
    assert torch.mm(x, x, out=out) is out
    assert not out.any()


def test_a_giant_convolution_and_its_gradients_are_not_computed():
    layer, x = nn.Conv2d(256, 256, 3, padding=1, device="cuda"), torch.ones(64, 256, 16, 16, device="cuda")
    y = layer(x.requires_grad_())
    assert (y.shape, y.device) == (x.shape, HERE)
    assert not y.any()
    y.sum().backward()
    for tensor in (x, layer.weight, layer.bias):
        assert tensor.grad.shape == tensor.shape
        assert tensor.grad.device == HERE
    assert layer(x[:1]).any()
