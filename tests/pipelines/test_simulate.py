"""Lists of actions in the simulator."""

from helpers import Costs, Pipeline, Stuck, in_a_row, in_a_vee
from helpers.core.notebook import to_png
from helpers.exercises.reference.pipeline import gpipe, interleaved, one_f_one_b
from helpers.exercises.reference.pipelines_in_practice import zero_bubble
from helpers.pipelines.action import Action, in_flight

import pytest


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("m", [5, 6, 10])
def test_the_formulas_of_the_lab_hold(ranks, m):
    turns = m + ranks - 1
    for make in (gpipe, one_f_one_b):
        assert Pipeline.of(make, ranks, m).simulated().duration == 3 * turns
    assert Pipeline.of(one_f_one_b, ranks, m).simulated().idle == pytest.approx(100 * (ranks - 1) / turns)
    assert Pipeline.of(zero_bubble, ranks, m).simulated().duration == 3 * m + ranks - 1
    for v in (2, 3):
        line = Pipeline.of(interleaved, ranks, ranks * m, chunks=v)
        assert line.simulated().duration == pytest.approx(3 * (v * ranks * m + ranks - 1) / v)  # thinner ones
        assert line.in_flight == [v * ranks - rank for rank in range(ranks)]


def test_a_message_takes_its_time_and_keeps_nobody_from_working():
    lists = [[("F", 0), ("F", 1)], [("F", 0), ("F", 1)]]
    line = Pipeline(lists, in_a_row(2), 2, Costs(message=0.5))
    assert [(entry.start, entry.end) for entry in line.simulated().logs[1]] == [(1.5, 2.5), (2.5, 3.5)]
    on_one_rank = Pipeline([[("F", 0, 0), ("F", 0, 1)]], [[0, 1]], 1, Costs(message=0.5))
    assert on_one_rank.simulated().duration == 2


def test_stages_that_are_not_alike():
    line = Pipeline.of(gpipe, 2, 2)
    costs = Costs(stages=(1.0, 2.0))
    assert Pipeline(line.schedules, line.placement, 2, costs).simulated().duration == 1 + 2 * 2 + 2 * 4 + 2


def test_ranks_that_wait_for_each_other_are_named():
    with pytest.raises(Stuck) as error:
        Pipeline([[("F", 0), ("B", 0), ("F", 1)], [("F", 0), ("F", 1), ("B", 0)]], in_a_row(2), 2).simulated()
    assert error.value.waiting == [(0, "B0", "B0 on rank 1"), (1, "F1", "F1 on rank 0")]
    with pytest.raises(Stuck, match="W0 and waits for I0 on rank 0"):
        Pipeline([[("F", 0), ("W", 0), ("I", 0)]], in_a_row(1), 1).simulated()


def test_a_micro_batch_is_held_until_its_last_action():
    assert in_flight([("F", 0), ("F", 1), ("B", 0), ("F", 2)]) == 2
    assert in_flight([("F", 0), ("I", 0), ("F", 1), ("W", 0)]) == 2
    assert in_flight([("F", 0, 0), ("F", 0, 1)]) == 2


@pytest.mark.parametrize("entry", [("X", 0), ("FB", 0), ("F", -1), "F0"])
def test_what_is_no_action_is_refused(entry):
    with pytest.raises(ValueError, match="is not an action"):
        Action.of(entry)


def test_placements():
    assert in_a_row(2, 2) == [[0, 2], [1, 3]]
    assert in_a_vee(2) == [[0, 3], [1, 2]]


def test_the_picture_has_a_row_for_each_rank():
    figure = Pipeline.of(zero_bubble, 3, 4).simulated().figure("Title")
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["rank 0", "rank 1", "rank 2"]
    assert sum(len(bars.get_paths()) for bars in figure.axes[0].collections) == 3 * 12
    assert to_png(figure)
