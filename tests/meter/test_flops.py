"""FLOPs against formulas written out, against PyTorch's counter, and against the products that they stand for."""

from helpers import SmallGPT, count_flops, hfu, mfu, model_flops
from helpers.meter.flops import flops_of

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from .training import ARCHITECTURES, cnn, lstm

aten = torch.ops.aten


def backward(model, x):
    return lambda: model(x).sum().backward()


def test_a_product_is_a_multiplication_and_an_addition_for_each_pair():
    a, b = torch.randn(3, 5), torch.randn(5, 7)
    assert count_flops(lambda: a @ b) == 2 * 3 * 5 * 7
    assert count_flops(lambda: a @ b[:, 0]) == 2 * 3 * 5  # a vector
    assert count_flops(lambda: a.relu() + 1) == 0


def test_inference_mode_hides_nothing():
    layer, x = nn.Linear(5, 7), torch.randn(3, 5)
    with torch.inference_mode():
        assert count_flops(lambda: layer(x)) == 2 * 3 * 5 * 7


@pytest.mark.parametrize("make", ARCHITECTURES, ids=lambda f: f.__name__)
def test_the_count_is_that_of_pytorch_where_nothing_is_fused(make):
    model, x, _ = make()
    step = backward(model, x)
    with torch.backends.mkldnn.flags(enabled=False), sdpa_kernel(SDPBackend.MATH):
        with FlopCounterMode(display=False) as counter:
            step()
        assert count_flops(step) == counter.get_total_flops() > 0


def test_a_fused_recurrent_layer_counts_like_the_products_it_stands_for():
    model, x, _ = lstm()
    with FlopCounterMode(display=False) as counter:
        backward(model, x)()
    fused = count_flops(backward(model, x))
    assert counter.get_total_flops() < fused  # why there is a formula of ours
    with torch.backends.mkldnn.flags(enabled=False):
        products = count_flops(backward(model, x))
    unwanted = 2 * 128 * 8 * 8 * 4 * 64 + 2 * 128 * 4 * 64 * 64  # gradients of the input and of the first state
    assert fused == products + unwanted


@pytest.mark.parametrize("causal", [False, True])
def test_fused_attention_counts_like_the_products_it_stands_for(causal):
    q, k, v = (torch.randn(2, 4, 32, 16, requires_grad=True) for _ in range(3))

    def forward():
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    one_product = 2 * 2 * 4 * 32 * 32 * 16
    with FlopCounterMode(display=False) as counter:
        forward()
    assert counter.get_total_flops() == 0  # why there is a formula of ours
    assert count_flops(forward) == 2 * one_product
    assert count_flops(lambda: forward().sum().backward()) == 7 * one_product  # its backward recomputes the scores
    with sdpa_kernel(SDPBackend.MATH):
        assert count_flops(forward) == 2 * one_product


def test_causal_attention_by_both_conventions():
    q = torch.randn(1, 2, 8, 4, requires_grad=True)

    def counts(causal):
        def run():
            return F.scaled_dot_product_attention(q, q, q, is_causal=causal).sum().backward()

        return count_flops(run), count_flops(run, "full square"), count_flops(run, "causal half")

    default, full, half = counts(causal=True)
    assert default == full == 2 * half
    assert len(set(counts(causal=False))) == 1


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("groups", [1, 4])
def test_a_convolution_backward_is_two_forwards(groups, transposed):
    family = nn.ConvTranspose2d if transposed else nn.Conv2d
    layer, x = family(8, 12, 3, stride=2, groups=groups), torch.randn(2, 8, 9, 9, requires_grad=True)
    places = 9 * 9 if transposed else 4 * 4
    forward = 2 * 2 * places * 3 * 3 * 8 * 12 // groups
    assert count_flops(lambda: layer(x)) == forward
    assert count_flops(backward(layer, x)) == 3 * forward
    assert count_flops(backward(layer, x.detach())) == 2 * forward  # the input wants no gradient


@pytest.mark.parametrize("wanted", [(True, True, True), (False, True, True), (True, False, False)])
def test_the_linear_layer_of_apples_gpu_counts_the_products_of_other_devices(wanted):
    layer, x = nn.Linear(6, 10), torch.randn(2, 5, 6, requires_grad=wanted[0])
    layer.weight.requires_grad_(wanted[1])
    layer.bias.requires_grad_(wanted[2])
    y = layer(x)
    there = count_flops(lambda: y.sum().backward())
    one_operation = flops_of(aten.linear_backward.default, (x, y, layer.weight, list(wanted)), {}, None)
    assert one_operation == there > 0
    assert flops_of(aten.linear.default, (x, layer.weight, layer.bias), {}, y) == count_flops(lambda: layer(x))


def test_recomputation_counts_as_often_as_it_runs():
    layer, x = nn.Linear(64, 64), torch.randn(32, 64, requires_grad=True)
    plain = count_flops(lambda: layer(layer(x)).sum().backward())
    again = count_flops(lambda: layer(checkpoint(layer, x, use_reentrant=True)).sum().backward())
    assert again - plain == 2 * 32 * 64 * 64


def test_a_compiled_function_is_counted_uncompiled():
    model, x, _ = cnn()
    expected = count_flops(backward(model, x))
    assert count_flops(backward(torch.compile(model, backend="eager"), x)) == expected


def test_six_n_d_is_the_count_of_a_gpt_without_its_attention_and_embeddings():
    model, ids = SmallGPT(layers=2, context=64), torch.randint(256, (3, 64))
    in_products = sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear))
    counted = count_flops(lambda: model(ids).sum().backward())
    attention = 2 * 7 * 2 * ids.numel() * ids.shape[1] * model.tokens.embedding_dim  # layers, products, 2mnk
    assert counted == model_flops(in_products, ids.numel()) + attention


def test_recomputation_raises_hfu_and_not_mfu():
    assert mfu(300, seconds=2.0, peak=1000) == hfu(300, seconds=2.0, peak=1000) == 0.15
    assert mfu(400, 2.0, 1000, recomputed=100) == 0.15
    assert hfu(400, 2.0, 1000) == 0.2
