"""Collectives: their seconds on a ring, and names that are none."""

from dataclasses import replace

from helpers.planner.catalog.clusters import find_cluster
from helpers.planner.catalog.layout_rates import layout_rates
from helpers.planner.layout.arch import Arch
from helpers.planner.layout.collective import Collective
from helpers.planner.layout.collective_seconds import RING, ring_seconds, tree_seconds
from helpers.planner.layout.layout import Layout
from helpers.planner.layout.links import Links
from helpers.planner.layout.trace import Arrival, Message

import pytest

MODEL = Arch(layers=4, hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn=14336, vocab=32000)
RATES = replace(layout_rates(), inside=1.0, start=0.0, hop=0.0)
LINK = Links(Layout(MODEL, shard=8), find_cluster("dgx-h100"), RATES)["shard"]
SENT = 7 / 8 * 1e9  # by each of 8 ranks, of a gigabyte


@pytest.mark.parametrize(
    ("collective", "nbytes"),
    [
        ("all-gather", SENT),
        ("reduce-scatter", SENT),
        ("all-reduce", 2 * SENT),
        ("all-to-all", SENT),
        ("shift", 1e9),
        ("send", 1e9),
    ],
)
def test_seconds_are_the_bytes_that_a_rank_sends_over_its_link(collective, nbytes):
    assert LINK.seconds(collective, 1e12) == pytest.approx(1e3 * nbytes / 450e9, rel=1e-3)
    assert LINK.seconds(Collective(collective), 1e9) == LINK.seconds(collective, 1e9)


@pytest.mark.parametrize("name", ["all_reduce", "all-gahter", "ALL-REDUCE", "broadcast", "", None])
def test_a_name_that_is_no_collective_is_refused(name):
    alone = replace(LINK, ranks=1)  # it is wrong where nothing is sent, too
    for ask in (lambda: LINK.seconds(name, 1e9), lambda: alone.seconds(name, 1e9)):
        with pytest.raises(ValueError, match="all-reduce, all-gather"):
            ask()
    for make in (lambda: Message(name, "shard", 1, True), lambda: Arrival(name)):
        with pytest.raises(ValueError, match="choose one of"):
            make()


def test_few_bytes_take_a_protocol_with_little_latency_and_many_the_whole_bandwidth():
    few, many = 1e4, 1e9
    assert ring_seconds(few, 8, 1, 450e9) < RING[2].base * 1e-6  # LL
    latency = (RING[2].base + 7 * RING[2].inside) * 1e-6
    assert ring_seconds(many, 8, 1, 450e9) == pytest.approx(latency + many / 450e9)


def test_the_latency_of_a_ring_grows_with_its_nodes_and_that_of_a_tree_with_their_logarithm():
    rings = [ring_seconds(0.0, 8 * nodes, nodes, 50e9) for nodes in (2, 16, 128)]
    assert rings[2] - rings[1] == pytest.approx(8 * (rings[1] - rings[0]), rel=0.01)
    trees = [tree_seconds(0.0, 8 * nodes, nodes, 50e9) for nodes in (2, 16, 128)]
    assert trees[2] - trees[1] == pytest.approx(trees[1] - trees[0])
    assert tree_seconds(1e5, 1024, 128, 50e9) < ring_seconds(1e5, 1024, 128, 50e9, passes=2)


def test_every_collective_takes_time():
    assert all(LINK.seconds(each, 1e9) > 0 for each in Collective)


@pytest.mark.parametrize(
    ("cluster", "tensor", "slower"),
    [("pcie-8x-a100", 1, 1), ("pcie-8x-a100", 2, 2), ("pcie-8x-a100", 4, 4), ("dgx-a100", 4, 1)],
)
def test_groups_that_alternate_share_the_link_between_two_processors(cluster, tensor, slower):
    """Of two tensor ranks and four data ranks, both groups of data ranks go through both halves of the node."""
    node = find_cluster(cluster)
    link = Links(Layout(MODEL, engine="megatron", zero="zero1", tensor=tensor, shard=8 // tensor), node, RATES)["shard"]
    assert link.inside == pytest.approx(node.inside / slower)


def test_groups_within_a_half_share_nothing():
    node = find_cluster("pcie-8x-a100")
    layout = Layout(MODEL, engine="megatron", zero="zero1", tensor=2, shard=2, pipeline=2, micro_batches=2)
    assert Links(layout, node, RATES)["shard"].inside == pytest.approx(node.inside)
