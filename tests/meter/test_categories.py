"""Whose bytes they are: categories against what arithmetic says."""

from helpers import MemoryMeter, SmallGPT, state_bytes

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from .training import CPU, checkpointed, cnn, gpt, training_step


def test_categories_of_a_linear_layer_are_what_arithmetic_says():
    model = nn.Linear(256, 512, bias=False)
    weight = 256 * 512 * 4
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    x = torch.randn(64, 256)

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    step()
    with MemoryMeter(model, optimizer) as meter:
        step()
    assert meter.largest["parameters"] == weight
    assert meter.largest["gradients"] == weight
    assert meter.largest["optimizer state"] == 2 * weight + 4  # two moments and the step
    assert meter.largest["inputs and other"] == x.nbytes
    assert meter.largest["activations"] == 64 * 512 * 4  # what square() keeps; the input is counted as input


def test_tied_weights_are_counted_once():
    model = SmallGPT(layers=1)
    with MemoryMeter(model) as meter:
        pass
    once = sum(p.numel() * 4 for p in model.parameters())
    assert meter.peak_bytes == once


def test_parameters_that_only_the_optimizer_still_holds_are_counted():
    model = nn.Linear(256, 512, bias=False)
    optimizer = torch.optim.SGD(model.parameters())
    model.weight = nn.Parameter(torch.zeros(1, 256))
    with MemoryMeter(model, optimizer) as meter:
        model(torch.ones(1, 256)).sum().backward()
        optimizer.step()
    assert meter.largest["inputs and other"] >= 256 * 512 * 4
    assert meter.largest["parameters"] == 256 * 4


def test_frozen_parameters_get_no_gradients():
    model, x, y = cnn()
    model.features.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.head.parameters())
    training_step(model, optimizer, x, y, None)
    with MemoryMeter(model, optimizer) as meter:
        training_step(model, optimizer, x, y, None)
    assert meter.largest["gradients"] == sum(p.numel() * 4 for p in model.head.parameters())


def test_autocast_halves_activations_and_adds_weight_copies():
    model, x, y = gpt()
    optimizer = torch.optim.AdamW(model.parameters())
    largest = {}
    for dtype in (None, torch.bfloat16):
        training_step(model, optimizer, x, y, dtype)
        with MemoryMeter(model, optimizer) as meter:
            training_step(model, optimizer, x, y, dtype)
        largest[dtype] = meter.largest
    assert largest[None]["weight copies"] == 0
    linear = sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear))
    biases = sum(m.bias.numel() for m in model.modules() if isinstance(m, nn.Linear) and m.bias is not None)
    assert largest[torch.bfloat16]["weight copies"] == pytest.approx(2 * (linear + biases), rel=0.02)
    assert largest[torch.bfloat16]["activations"] < 0.7 * largest[None]["activations"]
    assert largest[torch.bfloat16]["parameters"] == largest[None]["parameters"]
    assert largest[torch.bfloat16]["optimizer state"] == largest[None]["optimizer state"]


def test_checkpointing_keeps_fewer_activations():
    blocks = nn.Sequential(
        *(nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh()) for _ in range(8))
    )
    x = torch.randn(128, 256, requires_grad=True)

    def held(run):
        with MemoryMeter(blocks) as meter:
            run().sum().backward()
        blocks.zero_grad()
        return meter.largest["activations"]

    def checkpointed():
        y = x
        for block in blocks:
            y = checkpoint(block, y, use_reentrant=False)
        return y

    assert held(checkpointed) <= 0.6 * held(lambda: blocks(x))


def test_recomputed_activations_are_named():
    model, x, y = gpt()
    checkpointed(model)
    with MemoryMeter(model) as meter:
        F.cross_entropy(model(x).flatten(0, -2), y.flatten()).backward()
    one_block = 4 * 64 * 128 * 4  # bytes of (B, T, W) in FP32
    assert meter.largest["recomputed activations"] > 8 * one_block  # of one block: at least qkv, out, and the MLP's 4x
    assert meter.largest["recomputed activations"] < 25 * one_block  # and of one block at a time
    assert meter.stages[0].held_after["recomputed activations"] == 0
    assert any(op.phase == "backward (recomputing)" for op in meter.ops)


def test_gradients_of_gradients_are_no_recomputation():
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    x = torch.randn(32, 64, requires_grad=True)
    with MemoryMeter(model) as meter:
        y = model(x).sum()
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        (y + g.square().sum()).backward()
    assert meter.largest["recomputed activations"] == 0


def test_functions_without_modules_are_recomputed_too():
    x = torch.randn(256, 256, requires_grad=True)
    with MemoryMeter(device=CPU) as meter:
        checkpoint(lambda t: t.exp().tanh().sigmoid(), x, use_reentrant=False).sum().backward()
    assert meter.largest["recomputed activations"] >= 2 * x.nbytes


def test_sparse_gradients_are_gradients():
    model = nn.Embedding(1000, 16, sparse=True)
    with MemoryMeter(model) as meter:
        model(torch.arange(50)).sum().backward()
    assert meter.largest["gradients"] == 50 * 16 * 4 + 50 * 8


def test_lazy_and_scripted_modules_pass():
    with MemoryMeter(nn.Sequential(nn.LazyLinear(4))):
        pass
    with MemoryMeter(torch.jit.trace(nn.Linear(4, 4), torch.ones(1, 4))) as meter:
        pass
    assert meter.peak_bytes == 4 * 20


def test_weights_made_anew_are_parameters():
    model = nn.Linear(128, 128)
    with MemoryMeter(model) as meter:
        model.half()
    assert meter.timeline[-1][1]["parameters"] == 2 * (128 * 128 + 128)
    assert meter.timeline[-1][1]["weight copies"] == 0


@pytest.mark.parametrize("package", ["bitsandbytes", "torchao"])
def test_state_in_few_bits_is_known_byte_by_byte(package):
    """The tensors inside torchao's are found, and code books that parameters share count once."""
    pytest.importorskip(package)
    model = nn.Sequential(nn.Linear(128, 256, bias=False), nn.Linear(256, 128, bias=False))
    n, blocks = 128 * 256, 128 * 256 // 256
    if package == "torchao":
        from torchao.optim import AdamW8bit

        expected = 2 * (4 + 2 * (n + 4 * blocks + 4 * 256))
    else:
        from bitsandbytes.optim import AdamW8bit

        expected = 2 * 2 * (n + 4 * blocks) + 2 * 4 * 256
    optimizer = AdamW8bit(model.parameters())
    assert state_bytes(optimizer) == 0
    with torch.compiler.set_stance("force_eager"):
        for _ in range(2):
            with MemoryMeter(model, optimizer) as meter:
                model(torch.randn(4, 128)).sum().backward()
                optimizer.step()
    assert state_bytes(optimizer) == expected
    # A step counter may have lived before anyone looked; torchao's learning rate is a tensor, too.
    assert meter.largest["optimizer state"] == pytest.approx(expected, abs=64)
