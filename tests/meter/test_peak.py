"""The peak against known allocations, and against the peak rebuilt from PyTorch's own profiler."""

import itertools
import warnings

from helpers import CATEGORIES, MemoryMeter, MiB
from helpers.meter.optimizer_state import state_tensors
from helpers.planner.simulate.blocks import find_blocks

import numpy as np
import pytest
import torch
from torch import nn

from ..sampling import sample_with_quick
from .training import (
    ARCHITECTURES,
    CPU,
    RECIPES,
    checkpointed,
    cnn,
    first_step,
    rebuilt_peak,
    step_in_backward,
    storages,
    training_step,
)

TRAININGS = list(itertools.product(ARCHITECTURES, RECIPES))


@pytest.mark.parametrize(
    ("make", "recipe"), sample_with_quick(TRAININGS, one_in=1, quick_one_in=12), ids=lambda f: f.__name__
)
def test_peak_is_the_allocators_to_a_tenth_of_a_percent(make, recipe):
    torch.manual_seed(0)
    model, x, y = make()
    optimizers, step = recipe(model)
    first_step(step, x, y)
    model.zero_grad()  # so that nothing older than the profile is freed in it, which the profile would not see
    state = [t for optimizer in optimizers for t in state_tensors(optimizer)]
    truth = rebuilt_peak(lambda: step(x, y), storages(*model.parameters(), *model.buffers(), *state, x, y))
    model.zero_grad()
    with MemoryMeter(model, optimizers) as meter:
        step(x, y)
    assert meter.method == "allocator"
    assert meter.peak_bytes == pytest.approx(truth, rel=1e-3)
    assert sum(meter.at_peak.values()) == meter.peak_bytes
    assert set(meter.at_peak) == set(CATEGORIES)
    assert bool(meter.largest["recomputed activations"]) == (recipe is checkpointed and bool(find_blocks(model)))
    trained = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    if recipe is step_in_backward:
        assert 0 < meter.largest["gradients"] < trained  # never all at once
    else:
        assert meter.largest["gradients"] == pytest.approx(trained, rel=0.01)


def test_known_allocations_are_counted_to_the_byte():
    with MemoryMeter(device=CPU) as meter:
        a = torch.empty(3 * MiB, dtype=torch.uint8)
        b = torch.empty(5 * MiB, dtype=torch.uint8)
        del a
        c = torch.empty(2 * MiB, dtype=torch.uint8)
    assert meter.peak_bytes == 8 * MiB  # a and b; then b and c hold 7
    assert meter.at_peak["temporaries"] == 8 * MiB
    del b, c


def test_memory_older_than_the_meter_ends_when_it_is_freed():
    old = [torch.ones(4 * MiB, dtype=torch.uint8)]
    with MemoryMeter(device=CPU) as meter:
        old[0].view(-1)[0].item()  # the meter learns of it
        old.clear()
        new = torch.empty(3 * MiB, dtype=torch.uint8)
    assert meter.peak_bytes == 4 * MiB
    del new


def test_views_and_in_place_operations_cost_nothing():
    with MemoryMeter(device=CPU) as meter:
        a = torch.zeros(MiB, dtype=torch.uint8)
        a.view(2, -1).bitwise_not_().t()[0].zero_()
    assert meter.peak_bytes == MiB


def test_a_compiled_model_is_measured_compiled_and_says_what_is_hidden():
    model = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256))
    model.compile(backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(64, 256)

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    step()
    optimizer.zero_grad()
    truth = rebuilt_peak(step, storages(*model.parameters()))
    optimizer.zero_grad()
    with MemoryMeter(model, optimizer) as meter:
        step()
    assert meter.peak_bytes == pytest.approx(truth, rel=1e-3)
    assert meter.at_peak["activations"] == 0
    assert "compiled" in str(meter)
    assert meter.largest["gradients"] == sum(p.nbytes for p in model.parameters())


def test_a_compiled_function_is_measured_quietly(capfd):
    compiled = torch.compile(lambda x: (x.sin() + 1).cos(), backend="aot_eager")
    x = torch.randn(2**16)
    compiled(x)
    for by_category in (True, False):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with MemoryMeter(by_category=by_category) as meter:
                compiled(x)
        assert meter.peak_bytes >= 2 * x.nbytes
        assert bool(meter.at_peak["inputs and other"]) is by_category
    assert capfd.readouterr().err == ""


def test_peak_only_agrees_and_tells_no_categories_apart():
    model, x, y = cnn()
    optimizer = torch.optim.AdamW(model.parameters())
    step = lambda: training_step(model, optimizer, x, y, None)  # noqa: E731
    step()
    with MemoryMeter(model, optimizer) as full:
        step()
    with MemoryMeter(model, optimizer, by_category=False) as peak:
        step()
    known = storages(x, y)  # nobody told it of the inputs
    assert peak.peak_bytes == pytest.approx(full.peak_bytes - known, rel=1e-3)
    assert peak.at_peak["activations"] == 0
    assert peak.at_peak["parameters"] == full.at_peak["parameters"]


def test_forward_passes_without_backward_are_let_go():
    layer = nn.Linear(64, 64)
    x = torch.randn(1000, 64)
    with MemoryMeter(layer) as meter:
        for _ in range(10):
            torch.tanh(layer(x))  # tanh saves its own output
    one = 1000 * 64 * 4
    assert meter.largest["activations"] + meter.largest["temporaries"] <= 4 * one


def test_casts_of_tensors_without_memory_pass():
    with MemoryMeter(device=CPU) as meter:
        torch.empty(0).to(torch.float64)
        torch.empty(4, device="meta").to(torch.float64)
        torch.eye(4).to_sparse().to(torch.float64)
    assert meter.peak_bytes > 0


def test_memory_of_others_counts_from_when_it_is_touched_and_once():
    array = np.zeros(MiB // 4, np.float32)
    with MemoryMeter(device=CPU) as meter:
        for _ in range(10):
            torch.from_numpy(array).sum()
    assert meter.peak_bytes < 1.01 * MiB
    with MemoryMeter(device=CPU) as meter:
        for _ in range(10):
            torch.from_numpy(np.ones(MiB // 4, np.float32)).sum()  # new memory each time, freed each time
    assert meter.peak_bytes < 2.01 * MiB
