"""Collectives: their seconds on a ring, and names that are none."""

from dataclasses import replace

from helpers.planner.catalog.clusters import find_cluster
from helpers.planner.catalog.layout_rates import layout_rates
from helpers.planner.layout.arch import Arch
from helpers.planner.layout.collective import Collective
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
    assert LINK.seconds(collective, 1e9) == pytest.approx(nbytes / 450e9)
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


def test_every_collective_takes_time():
    assert all(LINK.seconds(each, 1e9) > 0 for each in Collective)
