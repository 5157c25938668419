"""What the capstone's rungs have in common: the same gradient, the same updates, and a meter of the second step."""

from dataclasses import replace

from helpers import LadderTask, Rung

import numpy as np
import pytest
import torch

ROWS = np.arange(64)
BASE = Rung("FP32", micro=64)


@pytest.fixture(scope="module")
def task():
    return LadderTask(batch=64)


def test_micro_batches_and_checkpointing_keep_the_gradient(task):
    whole = task.gradient(BASE, ROWS, "cpu")
    assert whole.shape == (sum(p.numel() for p in task.model(BASE, 0, "cpu").parameters()),)
    for other in (replace(BASE, micro=16), replace(BASE, micro=16, checkpointing=True)):
        torch.testing.assert_close(task.gradient(other, ROWS, "cpu"), whole, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(task.gradient(BASE, ROWS[:32], "cpu"), whole, atol=1e-4)


def test_weights_are_those_after_the_last_update_and_carry_no_graph(task):
    start = task.weights_after(BASE, [], "cpu")
    once, twice = (task.weights_after(BASE, n * [ROWS], "cpu") for n in (1, 2))
    name = "blocks.0.mlp.0.weight"
    assert start.keys() == once.keys() == twice.keys()
    assert not any(weight.requires_grad for weight in twice.values())
    assert 0 < (once[name] - start[name]).norm() < (twice[name] - start[name]).norm()


def test_the_meter_sees_a_step_whose_optimizer_state_exists(task):
    meter = task.meter(replace(BASE, micro=16), ROWS, "cpu")
    parameters = meter.at_peak["parameters"]
    assert meter.at_peak["optimizer state"] >= 2 * parameters > 0
    assert meter.peak_bytes < task.meter(BASE, ROWS, "cpu").peak_bytes
