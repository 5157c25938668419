"""Lists of actions on real ranks."""

from helpers import (
    LinearInTwoParts,
    Pipeline,
    Stuck,
    activations_held,
    clock_pipelines,
    distance_from_one_process,
    in_a_row,
    in_a_vee,
    weights_later,
)
from helpers.exercises.reference.pipeline import gpipe, interleaved, one_f_one_b
from helpers.exercises.reference.pipelines_in_practice import zero_bubble
from helpers.pipelines.clock import Clocked
from helpers.pipelines.timeline import Entry, Timeline

import pytest
import torch
from torch import nn

VEE = [
    [("F", 0, 0), ("F", 0, 1), ("I", 0, 1), ("W", 0, 1), ("B", 0, 0)],
    [("F", 0, 0), ("F", 0, 1), ("B", 0, 1), ("B", 0, 0)],
]


@pytest.mark.parametrize(
    "line",
    [
        Pipeline.of(one_f_one_b, 3, 4),
        Pipeline.of(interleaved, 2, 4, chunks=2),
        Pipeline.of(zero_bubble, 2, 3),
        Pipeline(VEE, in_a_vee(2), 1),
    ],
    ids=["1F1B", "interleaved", "zero bubble", "vee"],
)
def test_gradients_are_those_of_one_process(line):
    assert distance_from_one_process(line) < 1e-5


def test_gradients_of_what_is_left_out_are_missed():
    lists = [[("F", 0), ("F", 1), ("I", 0), ("W", 0), ("I", 1)]]
    assert not distance_from_one_process(Pipeline(lists, in_a_row(1), 2)) < 0.1


@pytest.mark.parametrize("run", [distance_from_one_process, lambda line: clock_pipelines({"a": line})])
def test_lists_that_do_not_fit_together_never_reach_the_ranks(run):
    with pytest.raises(Stuck):
        run(Pipeline([[("B", 0)]], in_a_row(1), 1))


def test_held_activations_grow_with_gpipe_alone():
    ways = {"GPipe": gpipe, "1F1B": one_f_one_b, "zero bubble": zero_bubble}
    lines = {(name, m): Pipeline.of(make, 2, m) for name, make in ways.items() for m in (2, 6)}
    held = activations_held(lines)
    assert held["GPipe", 6][0] == 3 * held["GPipe", 2][0]
    assert held["1F1B", 6] == held["1F1B", 2]
    assert held["zero bubble", 6] == held["zero bubble", 2]


def test_a_linear_layer_in_two_parts_is_one_in_one():
    torch.manual_seed(0)
    layer, plain = LinearInTwoParts(3, 2), nn.Linear(3, 2)
    plain.load_state_dict(layer.state_dict())
    for model, later in ((layer, True), (plain, False)):
        for _ in range(2):  # gradients add up
            x = torch.arange(12.0).view(4, 3).requires_grad_()
            if later:
                with weights_later() as backlog:
                    model(x).square().sum().backward()
                assert len(backlog) == 1
                for one, noted_x, dy in backlog:
                    one.add_weight_gradients(noted_x, dy)
            else:
                model(x).square().sum().backward()
    assert torch.allclose(layer.weight.grad, plain.weight.grad)
    assert torch.allclose(layer.bias.grad, plain.bias.grad)


def test_runs_are_drawn_in_ticks_however_fast_their_clock_goes():
    ideal = Timeline([[Entry("F", 0, 0, 0.0, 3.0)]], "ticks")
    axes = [
        Clocked(Timeline([[Entry("F", 0, 0, 5.0, 5.0 + 3 * tick)]]), ideal, tick, 0).figure("").axes[0]
        for tick in (0.1, 0.2)
    ]
    assert [one.get_xlabel() for one in axes] == ["ticks", "ticks"]
    assert axes[0].get_xlim() == pytest.approx(axes[1].get_xlim())


def test_the_clock_tells_a_busy_machine(capsys, monkeypatch):
    ideal = Timeline([[Entry("F", 0, 0, 0.0, 1.0)]], "ticks")
    quiet, busy = (Clocked(Timeline([[Entry("F", 0, 0, 5.0, 5.0 + s)]]), ideal, 0.1, 0) for s in (0.101, 0.2))
    assert not quiet.busy
    assert busy.busy
    assert (quiet.how, busy.how) == ("clocked", "simulated")
    assert busy.overslept == pytest.approx(0.1)
    monkeypatch.setattr(Clocked, "busy", True)
    clock_pipelines({"a": Pipeline([[("F", 0), ("B", 0)]], in_a_row(1), 1)})
    assert "a: this machine is busy" in capsys.readouterr().out
