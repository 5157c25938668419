"""What the lab on layouts in practice rests on: its questions, and a picture of steps."""

from helpers.exercises.layouts_in_practice.decisions import DECISIONS, best_known, decisions
from helpers.exercises.layouts_in_practice.pictures import parts_picture

import pytest


def test_each_decision_has_a_question_and_a_best_answer_that_fits():
    for name, question in decisions().items():
        found = best_known(name)
        assert found.fits
        assert (found.layout.arch, found.layout.ranks, found.layout.tokens) == (
            question.arch,
            question.gpus,
            question.tokens,
        )
    assert set(decisions()) == set(DECISIONS)


class Plan:
    seconds = 4.0

    def __init__(self, **parts):
        self.parts = parts


def test_bars_of_parts_are_as_long_as_the_steps():
    figure = parts_picture({"one": Plan(compute=0.5, shard=0.5), "other": Plan(compute=0.75, bubble=0.25)})
    bars = figure.axes[0].patches
    assert sum(bar.get_width() for bar in bars) == pytest.approx(8.0)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["one", "other"]
