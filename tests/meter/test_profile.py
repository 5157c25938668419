"""What a profile says of a block: the moment of the peak, stages, reports, figures, snapshots; and that it is data."""

import contextlib
import pickle

from helpers import MemoryMeter, MemoryProfile

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from .training import CPU, cnn, gpt, training_step


def test_phase_and_operation_of_the_peak_are_named():
    model, x, y = gpt()
    optimizer = torch.optim.AdamW(model.parameters())
    training_step(model, optimizer, x, y, None)
    with MemoryMeter(model, optimizer) as meter:
        training_step(model, optimizer, x, y, None)
    assert meter.peak_at.split(":")[0] in ("forward", "backward", "optimizer step")
    assert "aten." in meter.peak_at
    assert meter.peak_at in str(meter)


def test_stages_of_a_step():
    model, x, y = gpt()
    optimizer = torch.optim.AdamW(model.parameters())
    training_step(model, optimizer, x, y, None)
    optimizer.zero_grad()
    with MemoryMeter(model, optimizer) as meter:
        training_step(model, optimizer, x, y, None)
    assert [stage.name for stage in meter.stages] == ["forward", "backward", "optimizer step"]
    forward, backward, step = meter.stages
    assert forward.held_after["activations"] > 0
    assert forward.held_after["gradients"] == 0
    assert backward.held_after["activations"] == 0
    assert backward.held_after["gradients"] == step.held_after["gradients"] > 0
    assert max(stage.peak_bytes for stage in meter.stages) == meter.peak_bytes


def test_the_module_of_the_peak_is_named():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4096))
    with MemoryMeter(model) as meter:
        model(torch.randn(64, 8))
    assert meter.peak_at == "forward: aten.addmm.default in 1 (Linear)"
    loss = model(torch.randn(64, 8)).sum()
    with MemoryMeter(model) as meter:
        loss = model(torch.randn(64, 8)).sigmoid().sum()
        loss.backward()
    assert meter.peak_at.startswith("backward: ")
    modules = {op.module for op in meter.ops if op.phase == "backward"}
    assert "0 (Linear)" in modules
    assert "1 (Linear)" in modules


def test_a_snapshot_opens_in_pytorchs_viewer(tmp_path):
    from torch.cuda import _memory_viz

    model, x, y = cnn()
    with MemoryMeter(model) as meter:
        F.cross_entropy(model(x), y).backward()
    meter.save_snapshot(tmp_path / "snapshot.pickle")
    snapshot = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
    assert "aten.convolution" in _memory_viz.trace(snapshot) + str(snapshot)
    alive = peak = 0
    for event in snapshot["device_traces"][0]:
        alive += event["size"] if event["action"] == "alloc" else -event["size"]
        peak = max(peak, alive)
    assert peak == pytest.approx(meter.peak_bytes, rel=0.01)  # its times are in microseconds
    assert _memory_viz.trace_plot(snapshot)
    axes = meter.plot_blocks().axes[0]
    assert axes.collections
    assert len(axes.lines) == 2  # where forward and backward begin


def test_reports_read_well():
    model, x, _ = gpt()
    with MemoryMeter(model) as meter:
        model(x)
    assert str(meter).startswith("peak ")
    assert "parameters" in str(meter)
    assert "<table>" in meter._repr_html_()
    assert meter.plot().axes


def test_a_closure_is_forward_and_a_failed_step_is_over():
    model = nn.Linear(32, 32)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(8, 32)).square().mean()
        loss.backward()
        return loss

    with MemoryMeter(model, optimizer) as meter:
        optimizer.step(closure)
    assert any(op.phase == "forward" and op.module == "Linear" for op in meter.ops)
    bad = torch.optim.SGD(model.parameters(), lr=0.1)
    bad.param_groups[0]["lr"] = "high"
    with MemoryMeter(model, bad) as meter:
        model(torch.ones(8, 32)).sum().backward()
        with contextlib.suppress(TypeError):
            bad.step()
        model(torch.ones(8, 32))
    assert meter.stages[-1].name == "forward"


def test_a_peak_inside_is_not_the_start():
    model, x, _ = cnn()
    with MemoryMeter(model, by_category=False) as meter:
        model(x).sum().backward()
    assert meter.peak_at == "some operation"


def test_an_unused_meter_can_be_printed_and_plotted():
    meter = MemoryMeter(device=CPU).profile
    assert "nothing was allocated" in str(meter)
    assert meter.plot().axes


def test_a_profile_is_plain_data():
    model, x, _ = cnn()
    with MemoryMeter(model) as profile:
        model(x).sum().backward()
    again = pickle.loads(pickle.dumps(profile))
    assert isinstance(again, MemoryProfile)
    assert str(again) == str(profile)
    assert again.timeline == profile.timeline
    assert not any(isinstance(value, nn.Module | torch.Tensor) for value in vars(again).values())
