"""Profiles of real steps: what they say of phases and kinds, and what happens when something is in the way."""

import functools
import gzip
import json
import time

from helpers import MemoryMeter, StepProfile, count_flops, profile_step
from helpers.meter.step_profile import Part
from helpers.meter.timing import Timing

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from .training import CPU, gpt, training_step

profiled = functools.partial(profile_step, device=CPU, runs=3)


def gpt_step(reentrant=None):
    """Return the step of a GPT; its blocks are checkpointed unless `reentrant` is None."""
    torch.manual_seed(0)
    model, x, y = gpt()
    for block in model.blocks if reentrant is not None else ():
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=reentrant)
    optimizer = torch.optim.AdamW(model.parameters())
    return lambda: training_step(model, optimizer, x, y, None)


def test_parts_and_what_is_unexplained_are_the_step():
    step = profiled(gpt_step())
    for sums in (step.by_phase(), step.by_kind()):
        assert sum(sums.values()) + step.unexplained == pytest.approx(step.seconds)
    assert step.seconds == step.timing.median
    assert len(step.timing.runs) == len(step.profiled.runs) == 3
    assert step.method == "operations"


def test_a_gpt_has_its_products_forward_and_twice_as_many_backward():
    run = gpt_step()
    step = profiled(run)
    assert set(step.by_phase()) == {"forward", "backward", "optimizer"}
    flops = {phase: sum(p.flops for p in step.parts if p.phase == phase) for phase in step.by_phase()}
    products = sum(p.flops for p in step.parts if p.phase == "forward" and p.kind == "matmul")
    attention = flops["forward"] - products
    assert attention > 0
    assert flops["backward"] == pytest.approx(2 * products + 2.5 * attention)
    assert flops["optimizer"] == 0
    assert step.flops == count_flops(run)
    assert step.recomputed_flops == 0
    assert {p.kind for p in step.parts if p.phase == "optimizer"} <= {"pointwise", "copy", "gap", "norm"}


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_seconds_and_flops_stand_apart(reentrant):
    plain, again = profiled(gpt_step()), profiled(gpt_step(reentrant))
    assert again.by_phase()["recompute"] > 0
    assert again.flops - again.recomputed_flops == plain.flops
    assert again.recomputed_flops > 0.1 * plain.flops
    assert again.hfu(1e12) > again.mfu(1e12)
    assert plain.hfu(1e12) == plain.mfu(1e12)


class Slow(torch.utils.data.Dataset):
    """Rows that take a while to read."""

    def __len__(self):
        return 1000

    def __getitem__(self, i):
        time.sleep(0.002)
        return torch.ones(8)


def test_a_slow_loader_shows_under_data():
    layer, batches = nn.Linear(8, 8), iter(DataLoader(Slow(), batch_size=4))
    step = profiled(lambda: layer(next(batches)).sum().backward())
    assert step.by_phase()["data"] > 0.006  # of four times 2 ms asleep


def test_a_loader_of_ones_own_is_labelled():
    layer = nn.Linear(8, 8)

    def run():
        with record_function("data"):
            time.sleep(0.01)
        layer(torch.ones(4, 8)).sum().backward()

    assert profiled(run).by_phase()["data"] > 0.008  # of 10 ms asleep


def test_python_is_a_gap_and_not_an_operation():
    x = torch.ones(8)

    def run():
        x.add_(1)
        time.sleep(0.01)
        x.add_(1)

    step = profiled(run)
    assert step.by_kind()["gap"] > 0.008  # of 10 ms asleep
    assert [part.name for part in step.largest()] == ["aten::add"]


def test_item_in_a_loop_is_found():
    losses = torch.ones(50)
    step = profiled(lambda: sum(loss.item() for loss in losses.exp()))
    (part,) = (p for p in step.parts if p.name == "aten::_local_scalar_dense")
    assert (part.phase, part.kind, part.calls) == ("forward", "copy", 50)


def test_large_products_are_the_longest_part_and_small_ones_wait_for_python():
    large, small = torch.randn(512, 512), torch.randn(4, 4)
    # A pause in the middle of a step lands in a gap or in a product, whichever was under way: of five
    # profiles of each the two are compared that other work on the machine disturbed least.
    steps = [profiled(lambda: [large @ large for _ in range(5)]) for _ in range(5)]
    tinies = [profiled(lambda: [small @ small for _ in range(200)]) for _ in range(5)]
    step, tiny = min(steps, key=lambda s: s.seconds), min(tinies, key=lambda s: s.seconds)
    assert step.largest(1)[0].name == "aten::mm"
    assert step.by_kind()["matmul"] > 0.8 * sum(step.by_kind().values())
    assert tiny.by_kind()["gap"] / tiny.by_kind()["matmul"] > 5 * step.by_kind()["gap"] / step.by_kind()["matmul"]


def test_a_compiled_model_says_whose_work_it_shows():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 1))
    x = torch.randn(16, 32)
    run = torch.compile(model, backend="aot_eager")
    step = profiled(lambda: run(x).sum().backward())
    assert step.flops == count_flops(lambda: model(x).sum().backward())


def test_the_trace_is_saved_and_everything_else_is_plain(tmp_path):
    path = tmp_path / "step.json.gz"
    step = profiled(gpt_step(), trace=path)
    with gzip.open(path) as file:
        names = {event.get("name") for event in json.load(file)["traceEvents"]}
    assert {"step", "aten::addmm"} <= names
    data = json.loads(step.to_json())
    assert data["parts"][0]["seconds"] == step.parts[0].seconds
    assert data["timing"]["runs"] == list(step.timing.runs)


def test_the_table_and_the_figure_show_every_phase_and_kind():
    step = profiled(gpt_step(reentrant=False))
    text, figure = str(step), step.figure()
    for word in (*step.by_phase(), *step.by_kind(), "unexplained", "GFLOP/s"):
        assert word in text
    bars = {label.get_text() for label in figure.axes[0].get_yticklabels()}
    assert bars == {*step.by_phase(), "unexplained"}


def test_parts_with_flops_have_a_place_under_the_roofline():
    step = profiled(gpt_step())
    places = step.on_roofline()
    assert {"forward: aten::addmm", "backward: aten::mm"} <= set(places)
    flops, nbytes, seconds = places["backward: aten::mm"]
    (part,) = (p for p in step.parts if (p.phase, p.name) == ("backward", "aten::mm"))
    assert (flops, nbytes, seconds) == (part.flops, part.bytes, part.seconds)


def test_a_step_unlike_its_parts_says_so():
    part = Part("forward", "matmul", "aten::mm", 0.5, 1, 10, 10)
    timing = Timing((1.0, 1.0, 1.0))
    short = StepProfile("cpu", "operations", timing, (part,), timing, 1, 0.0)
    assert short.unexplained == 0.5
    assert "Parts and step differ" in str(short)
    whole = StepProfile("cpu", "operations", Timing((0.51,) * 3), (part,), timing, 1, 0.0)
    assert "Parts and step differ" not in str(whole)


# -- what is in the way


def test_a_step_that_fails_leaves_nothing_running():
    calls = []

    def run():
        calls.append(1)
        if len(calls) == 4:  # the first one under the profiler
            raise ValueError("the step's own mistake")

    with pytest.raises(ValueError, match="own mistake"):
        profiled(run)
    assert not torch.autograd._profiler_enabled()
    assert profiled(lambda: torch.ones(3) + 1).seconds > 0
    with MemoryMeter() as memory:
        torch.ones(3)
    assert memory.method == "allocator"


def test_a_second_profiler_is_refused_in_one_line():
    def step():
        return torch.ones(3) + 1

    refused = functools.partial(pytest.raises, RuntimeError, match="A profiler is already running")
    with MemoryMeter(), refused():
        profiled(step)
    with profile(activities=[ProfilerActivity.CPU]), refused():
        profiled(step)
    with refused():
        profiled(lambda: profiled(step))
    assert profiled(step).seconds > 0


def test_a_meter_inside_the_step_counts_without_its_log():
    seen = []

    def run():
        with MemoryMeter() as memory:
            F.relu(torch.randn(64, 64))
        seen.append(memory.method)

    profiled(run)
    assert set(seen) == {"counted"}
