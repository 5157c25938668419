"""The meter against CUDA's own count of its memory, what optimizers take for a moment there, and profiles of steps."""

from helpers import MemoryMeter, count_flops, profile_step

import pytest
import torch
from torch import nn

from .training import ARCHITECTURES, RECIPES

pytestmark = pytest.mark.cuda
GPU = torch.device("cuda")


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("make", ARCHITECTURES, ids=lambda f: f.__name__)
def test_peak_is_max_memory_allocated(make, recipe):
    torch.manual_seed(0)
    model, x, y = make()
    model, x, y = model.to(GPU), x.to(GPU), y.to(GPU)
    optimizers, step = recipe(model)
    step(x, y)  # the optimizer's state and the libraries' workspaces appear
    for by_category in (True, False):
        torch.cuda.reset_peak_memory_stats()
        with MemoryMeter(model, optimizers, by_category=by_category) as meter:
            step(x, y)
        counted = torch.cuda.max_memory_allocated()
        assert meter.peak_bytes + meter.outside_bytes == pytest.approx(counted, rel=1e-3)


@pytest.mark.parametrize("family", [torch.optim.AdamW, torch.optim.SGD], ids=lambda f: f.__name__)
def test_a_fused_optimizer_takes_the_same_step_with_less_memory(family):
    results, extra = [], []
    for way in ({"foreach": True}, {"fused": True}):
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8))).to(GPU)
        options = {"momentum": 0.9} if family is torch.optim.SGD else {}
        optimizer = family(model.parameters(), lr=1e-2, weight_decay=0.1, **options, **way)
        for _ in range(3):
            for p in model.parameters():
                p.grad = torch.full_like(p, 0.5)
            before = torch.cuda.memory_allocated()
            with MemoryMeter(model, optimizer, by_category=False) as meter:
                optimizer.step()
        results.append(torch.cat([p.detach().flatten() for p in model.parameters()]).cpu())
        extra.append(meter.peak_bytes - before)
    torch.testing.assert_close(*results)
    assert extra[1] < extra[0] / 10


@pytest.mark.silicon  # a pretended GPU has no kernels
def test_a_profile_adds_up_kernels_and_a_gap_is_time_without_one():
    large = torch.randn(4096, 4096, device=GPU)

    def multiply():
        return [large @ large for _ in range(20)]

    step = profile_step(multiply, GPU)
    assert step.method == "kernels"
    assert step.flops == count_flops(multiply)
    assert step.by_kind()["matmul"] > 0.9 * step.seconds
    assert abs(step.unexplained) < 0.05 * step.seconds
    small = torch.randn(8, 8, device=GPU)
    waiting = profile_step(lambda: [(small @ small).sum().item() for _ in range(50)], GPU)
    assert waiting.by_kind()["gap"] > 0.5 * waiting.seconds


@pytest.mark.silicon
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda f: f.__name__)
def test_kernels_belong_to_the_phase_of_the_operation_that_launched_them(recipe):
    model, x, y = ARCHITECTURES[1]()
    model, x, y = model.to(GPU), x.to(GPU), y.to(GPU)
    _, step = recipe(model)
    seen = profile_step(lambda: step(x, y), GPU)
    flops = {phase: sum(p.flops for p in seen.parts if p.phase == phase) for phase in seen.by_phase()}
    kernels = {phase: sum(p.seconds for p in seen.parts if p.phase == phase and p.flops) for phase in seen.by_phase()}
    assert {phase for phase, n in flops.items() if n} == {phase for phase, seconds in kernels.items() if seconds}
    assert seen.by_phase()["optimizer"] > 0
