"""The FP8 lab's short run: what is the same in two runs, and what its figures count."""

from helpers import ShortRun

import pytest
import torch


@pytest.fixture(scope="module")
def run():
    return ShortRun(torch.device("cpu"), steps=2)


def test_a_seed_gives_the_same_losses_and_another_seed_others(run):
    (_, first), (_, again), (_, other) = run.train(), run.train(), run.train(seed=1)
    assert len(first) == 2
    assert first == again != other


def test_a_change_comes_before_training_and_every_forward_pass_is_inside_around(run):
    seen = []

    class Around:
        def __enter__(self):
            seen.append("in")

        def __exit__(self, *_):
            seen.append("out")

    model, _ = run.train(lambda model: seen.append(len(run.linears(model))), around=Around)
    assert seen == [8, "in", "out", "in", "out"]
    assert "head" not in run.linears(model)


def test_zero_gradients_are_counted_over_the_weights_of_blocks(run):
    model, _ = run.train()
    weights = {name: layer.weight for name, layer in run.linears(model).items()}
    silent = weights["blocks.1.mlp.2"]
    silent.register_hook(torch.zeros_like)
    share = silent.numel() / sum(weight.numel() for weight in weights.values())
    assert run.zero_gradients(model) == pytest.approx(100 * share, abs=1)


def test_the_meter_sees_a_second_step_with_its_optimizer_state(run):
    meter = run.meter(width=32)
    held = {stage.name: stage.held_after for stage in meter.stages}["forward"]
    assert held["optimizer state"] > held["parameters"] > 0
    assert held["inputs and other"] == 2 * 8 * 64 * 8  # ids and targets of int64, without the text they are from
