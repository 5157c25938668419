"""What the lab on layouts rests on: rings by where ranks lie, candidates, pictures."""

from helpers.exercises.choosing_a_layout.candidates import candidates
from helpers.exercises.choosing_a_layout.pictures import crossing_picture, grid_picture, search_picture
from helpers.exercises.choosing_a_layout.ring import ring_bandwidth
from helpers.planner.catalog.archs import arch_of
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
    arch = arch_of("llama-3.1-8b")
    rates = layout_rates()
    for tensor, shard in ((1, 8), (1, 32), (8, 4), (4, 8), (2, 4), (16, 1)):
        link = Links(Layout(arch, tensor=tensor, shard=shard), H100, rates)["shard"]
        inside, outside = H100.inside * rates.inside, H100.outside * rates.outside
        ours = ring_bandwidth(H100.__class__("", H100.gpu, 8, inside, outside, ""), shard, tensor)
        assert link.bandwidth == pytest.approx(ours)


def test_the_grid_has_a_box_for_each_rank_and_a_color_for_each_node():
    figure = grid_picture({"pipeline": 2, "data": 3, "tensor": 2}, node=4)
    boxes = figure.axes[0].patches
    assert len(boxes) == 12
    assert len({box.get_facecolor() for box in boxes}) == 3
    words = [text.get_text() for text in figure.axes[0].texts]
    assert {"rank 11", "pipeline 1, data 2", "tensor 1"} <= set(words)


def test_the_crossing_has_a_line_for_each_method():
    figure = crossing_picture((64, 128), {"sharded": (1e6, 1e6), "tensor": (5e5, 1e6)})
    assert [line.get_label() for line in figure.axes[0].lines] == ["sharded", "tensor"]


def test_candidates_use_all_gpus_and_all_tokens_once():
    found = list(candidates(arch_of("llama-3.1-8b"), 8, 2**19))
    assert len(set(found)) == len(found) > 50
    assert {(layout.ranks, layout.tokens) for layout in found} == {(8, 2**19)}
    assert {layout.recompute for layout in found} == {"none", "full"}


def test_the_search_has_a_point_for_each_layout_and_a_circle_for_the_best():
    points = {"tensor 1": [(2**30, 1.0), (2**31, 2.0)], "tensor 2": [(2**32, 3.0)]}
    axes = search_picture(points, 2**33, (2**30, 1.0)).axes[0]
    assert [len(dots.get_offsets()) for dots in axes.collections] == [2, 1, 1]
    assert len(search_picture(points, 2**33, None).axes[0].collections) == 2
