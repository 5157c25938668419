"""What the lab on layouts rests on: rings by where ranks lie, its questions, its pictures."""

from helpers.exercises.choosing_a_layout.decisions import DECISIONS, best_known, decisions
from helpers.exercises.choosing_a_layout.pictures import crossing_picture, grid_picture, parts_picture
from helpers.exercises.choosing_a_layout.ring import ring_bandwidth
from helpers.planner.catalog.clusters import CLUSTERS
from helpers.planner.catalog.layout_rates import layout_rates
from helpers.planner.layout.layout import Layout
from helpers.planner.layout.links import Links

import pytest

H100 = CLUSTERS["dgx-h100"]


@pytest.mark.parametrize(
    ("ranks", "stride", "gigabytes"), [(8, 1, 450), (16, 1, 400), (64, 1, 400), (8, 8, 50), (4, 2, 450), (8, 2, 200)]
)
def test_a_ring_leaves_a_node_through_the_ports_of_its_ranks(ranks, stride, gigabytes):
    assert ring_bandwidth(H100, ranks, stride) == gigabytes * 1e9


def test_rings_follow_the_rule_of_the_planner():
    arch = best_known("long").layout.arch
    rates = layout_rates()
    for tensor, shard in ((1, 8), (1, 32), (8, 4), (4, 8), (2, 4), (16, 1)):
        link = Links(Layout(arch, tensor=tensor, shard=shard), H100, rates)["shard"]
        inside, outside = H100.inside * rates.inside, H100.outside * rates.outside
        ours = ring_bandwidth(H100.__class__("", H100.gpu, 8, inside, outside, ""), shard, tensor)
        assert link.bandwidth == pytest.approx(ours)


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


def test_the_grid_has_a_box_for_each_rank_and_a_color_for_each_node():
    figure = grid_picture({"pipeline": 2, "data": 3, "tensor": 2}, node=4)
    boxes = figure.axes[0].patches
    assert len(boxes) == 12
    assert len({box.get_facecolor() for box in boxes}) == 3
    words = [text.get_text() for text in figure.axes[0].texts]
    assert {"rank 11", "pipeline 1, data 2", "tensor 1"} <= set(words)


class Plan:
    seconds = 4.0

    def __init__(self, **parts):
        self.parts = parts


def test_bars_of_parts_are_as_long_as_the_steps():
    figure = parts_picture({"one": Plan(compute=0.5, shard=0.5), "other": Plan(compute=0.75, bubble=0.25)})
    bars = figure.axes[0].patches
    assert sum(bar.get_width() for bar in bars) == pytest.approx(8.0)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["one", "other"]


def test_the_crossing_has_a_line_for_each_way():
    figure = crossing_picture((64, 128), {"sharded": (1e6, 1e6), "tensor": (5e5, 1e6)})
    assert [line.get_label() for line in figure.axes[0].lines] == ["sharded", "tensor"]
