"""The search finds what full enumeration finds, because no bound is above what a plan says."""

import functools
import itertools
import random
from dataclasses import replace

from helpers.core.units import GiB
from helpers.planner import RecipeError
from helpers.planner.catalog.archs import arch_of
from helpers.planner.catalog.clusters import find_cluster
from helpers.planner.layout.arch import Arch
from helpers.planner.layout.layout import Layout
from helpers.planner.layout.layout_plan import stage_kinds
from helpers.planner.layout.long_stage import run_key, run_long_stage
from helpers.planner.layout.stage_run import run_stage
from helpers.planner.search import best as best_module
from helpers.planner.search.best import BEST, plan_one, probe_one, search
from helpers.planner.search.bounds import Bounds
from helpers.planner.search.found import Found
from helpers.planner.search.in_flight import in_flight
from helpers.planner.search.probe import probe_of
from helpers.planner.search.question import OBJECTIVES, Question, parse_count
from helpers.planner.search.space import layouts

import pytest

from tests.sampling import sample

DENSE = Arch(layers=4, hidden=512, heads=8, kv_heads=4, head_dim=64, ffn=1024, vocab=4096)
MIXED = replace(DENSE, ffn=0, experts=4, experts_per_token=2, moe_ffn=512)
CLUSTER = find_cluster("dgx-h100", 2)  # two GPUs a node, so that four or eight are several nodes


def question(gpus=4, room=1.0, **changes):
    gpu = replace(CLUSTER.gpu, total=int(room * GiB) + CLUSTER.gpu.context)
    values = {"arch": DENSE, "gpus": gpus, "tokens": 8 * 1024, "seq": 1024} | changes
    return Question(cluster=replace(CLUSTER, gpu=gpu), **values)


ASKED = question(gpus=8, tokens=32 * 1024)


def some(asked, seed, count):
    return random.Random(seed).sample(list(layouts(asked)), count)


def plans(few, cluster):
    return {layout: found for layout in few if isinstance(found := plan_one(layout, cluster), Found)}


@pytest.fixture(scope="module")
def planned():
    """Plans of some layouts, dense and mixed, by layout."""
    few = [*some(ASKED, 0, 10), *some(replace(ASKED, arch=MIXED), 0, 3)]
    known = plans(few, ASKED.cluster)
    assert len(known) > len(few) / 2
    return known


@functools.cache
def probe(plain):
    return probe_one(plain)


def assert_bounded(known, cluster):
    """No bound is above the plan, and where there is a probe, the closer one is not below."""
    bounds = Bounds(cluster)
    for layout, found in known.items():
        bound, plain = bounds.of(layout), probe_of(layout)
        assert bound.seconds <= found.seconds, layout.summary
        assert bound.nbytes <= found.nbytes, layout.summary
        if plain is None:
            continue
        closer = bounds.of(layout, probe(plain))
        assert bound.seconds * (1 - 1e-9) <= closer.seconds <= found.seconds, layout.summary
        assert closer.nbytes <= found.nbytes, layout.summary


@pytest.mark.slow
def test_no_bound_is_above_the_plan(planned):
    assert_bounded(planned, ASKED.cluster)


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("room", [0.15, 0.5, 50.0])
def test_the_search_finds_what_enumeration_finds(monkeypatch, planned, objective, room):
    asked = question(objective=objective, room=room, gpus=8, tokens=32 * 1024)
    fits = {layout: replace(found, fits=found.nbytes <= asked.cluster.gpu.room) for layout, found in planned.items()}
    monkeypatch.setattr(best_module, "BEST", 3)
    monkeypatch.setattr(best_module, "layouts", lambda asked: iter(fits))
    monkeypatch.setattr(best_module, "plan_one", lambda layout, cluster: fits[layout])
    monkeypatch.setattr(best_module, "probe_one", probe)
    state = search(asked)
    values = sorted(state.value_of(found) for found in fits.values() if found.fits)
    assert [state.value_of(found) for found in state.best(3)] == values[:3]
    assert len(state.planned) < len(fits)  # or the bounds rule nothing out


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "seed"), sample(list(itertools.product([DENSE, MIXED], range(1, 5))), one_in=8))
def test_no_bound_is_above_the_plan_of_others(arch, seed):
    asked = replace(ASKED, arch=arch)
    assert_bounded(plans(some(asked, seed, 20), asked.cluster), asked.cluster)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "seed"), sample(list(itertools.product(["llama-3.1-70b", "mixtral-8x7b"], range(6))), one_in=12)
)
def test_no_bound_is_above_the_plan_of_wide_models(model, seed):
    """In narrow models launches hide what a bound counts too much of: parameters that are copied, rows of logits."""
    arch = replace(arch_of(model), layers=4)
    asked = Question(arch, find_cluster("dgx-h100"), 64, 2**19, 8192)
    few = [layout for layout in some(asked, seed, 60) if layout.micro_batch_size <= 2]
    sharded = [layout for layout in few if layout.zero == "zero3"][:3]
    split = [layout for layout in few if layout.schedule == "zero-bubble"][:2]
    assert_bounded(plans([*sharded, *split], asked.cluster), asked.cluster)


def test_megatron_is_searched_as_it_is_planned():
    """A single plan runs its kernels (`layout_of`)."""
    for asked in (ASKED, replace(ASKED, arch=MIXED)):
        assert {each.uses_transformer_engine for each in layouts(asked) if each.engine == "megatron"} == {True}


def test_passes_in_flight_count_each_stage_with_its_bytes():
    split = Layout(DENSE, pipeline=2, schedule="zero-bubble", micro_batches=4, zero="none")
    # The last rank: F0 I0 F1 I1 W0 F2 I2 W1 F3 I3 W2 W3. At I1 a pass waits for its weights' half, and one is begun.
    assert in_flight(split, 1, (10.0,), (1.0,)) == (21.0, 21.0)
    plain = replace(split, schedule="1f1b")
    assert in_flight(plain, 0, (10.0,), (1.0,)) == (20.0, 20.0)  # two passes, and nothing waits
    pieces = replace(split, schedule="interleaved", virtual_stages=2, micro_batches=2)
    # The first rank: F0 F1 of its first stage, F0 F1 of its second, which is done first.
    assert in_flight(pieces, 0, (10.0, 100.0), (0.0, 0.0)) == (220.0, 10.0)


@pytest.mark.slow
@pytest.mark.parametrize(("gpus", "thousands"), sample([(1, 4), (2, 1), (2, 2), (2, 4)], one_in=4))  # 15 to 120 layouts
def test_a_whole_space_is_searched_like_enumerated(gpus, thousands):
    asked = question(gpus=gpus, tokens=thousands * 1024, room=0.2)
    every = list(layouts(asked))
    known = plans(every, asked.cluster)
    state = search(asked)
    values = sorted(state.value_of(found) for found in known.values() if found.fits)
    assert [state.value_of(found) for found in state.best()] == values[:BEST]


@pytest.mark.slow
def test_layouts_with_one_key_run_alike():
    for layout in (found for found in some(ASKED, 0, 4) if found.recompute != "selective"):
        for kind in dict.fromkeys(stage_kinds(layout)):
            shared, own = run_long_stage(layout, kind), run_stage(layout, kind)
            assert shared.parameters == own.parameters
            assert shared.actions.keys() == own.actions.keys()
            for action, places in own.actions.items():
                assert [place.events for place in shared.actions[action]] == [place.events for place in places]
                assert [+place.peak for place in shared.actions[action]] == [+place.peak for place in places]
        assert run_key(run_key(layout)) == run_key(layout)


@pytest.mark.parametrize(("text", "number"), [("4M", 2**22), ("512k", 2**19), ("1,024", 1024), ("1.5k", 1536)])
def test_counts_are_read(text, number):
    assert parse_count(text) == number


@pytest.mark.parametrize("text", ["", "M", "4T", "-1", "0", "1.5", "nan", "1e400"])
def test_what_is_no_count_is_refused(text):
    with pytest.raises(RecipeError, match="not a number of tokens"):
        parse_count(text)


@pytest.mark.parametrize(
    ("changes", "word"),
    [({"gpus": 0}, "gpus"), ({"tokens": 1000}, "1,024"), ({"objective": "fun"}, "choose one"), ({"seq": 0}, "seq")],
)
def test_questions_without_sense_are_refused(changes, word):
    with pytest.raises(RecipeError, match=word):
        question(**changes)


def test_tensor_messages_overlap_where_the_engine_can():
    """Megatron's do over NVLink, in a node; over PCIe, over nodes, and in torchtitan tensor ranks wait."""
    wide = Question(DENSE, CLUSTER, 4, 8 * 1024, 1024)
    slow = Question(DENSE, find_cluster("8x-4090"), 4, 8 * 1024, 1024)
    seen = {(l.engine, l.tensor, l.tensor_overlap) for l in layouts(wide)}  # noqa: E741
    assert {(engine, tensor) for engine, tensor, overlap in seen if overlap} == {("megatron", 2)}  # two GPUs a node
    assert ("megatron", 2, False) not in seen
    assert not any(layout.tensor_overlap for layout in layouts(slow))
