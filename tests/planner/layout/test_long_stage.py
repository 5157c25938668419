"""A long stage that follows from short ones is the stage that is run whole."""

from dataclasses import replace

from helpers.planner.allocator import ROUNDING
from helpers.planner.layout import long_stage, trace
from helpers.planner.layout.long_stage import FEW, run_long_stage
from helpers.planner.layout.stage_run import StageKind, run_stage

import pytest

from tests.planner.layout.small import DENSE, GPT, GROUPED, LATENT, MIXED, layout
from tests.sampling import sample

MIDDLE, ALL = (False, False), (True, True)
CASES = {
    "zero3": (ALL, layout(shard=4, micro_batches=2)),
    "zero3 kept": (ALL, layout(shard=4, reshard_after_forward=False)),
    "zero3 compiled": (ALL, layout(shard=4, compile=True)),
    "hsdp": (ALL, layout(GROUPED, shard=2, replicate=2)),
    "zero1": (ALL, layout(shard=4, zero="zero1", micro_batches=2)),
    "zero2 fp16": (ALL, layout(shard=2, zero="zero2", precision="fp16-amp", engine="pytorch")),
    "none": (ALL, layout(GPT, zero="none", engine="pytorch", seq=64)),
    "fp32": (ALL, layout(GROUPED, zero="none", precision="fp32")),
    "tensor": (ALL, layout(GROUPED, tensor=2, shard=2, zero="zero1", sequence_parallel=False, engine="megatron")),
    "tensor torchtitan": (ALL, layout(GROUPED, tensor=2, shard=2)),
    "tensor megatron": (ALL, layout(tensor=2, zero="none", engine="megatron", precision="bf16")),
    "full": (ALL, layout(shard=2, recompute="full")),
    "every 2": (ALL, layout(shard=2, recompute="full", recompute_every=2, micro_batches=2)),
    "every 2, one more": (ALL, layout(replace(DENSE, layers=9), shard=2, recompute="full", recompute_every=2)),
    "selective": (ALL, layout(shard=2, recompute="selective")),
    "selective megatron": (ALL, layout(tensor=2, zero="zero1", recompute="selective", engine="megatron")),
    "ring": (ALL, layout(GROUPED, context=2)),
    "all-to-all": (ALL, layout(GROUPED, context=2, context_method="all-to-all", zero="zero1")),
    "experts": (ALL, layout(MIXED, shard=4, expert=4, micro_batches=2)),
    "experts beside tensor ranks": (
        MIDDLE,
        layout(replace(MIXED, dense_layers=0), tensor=2, expert=4, shard=2, engine="megatron", zero="zero1"),
    ),
    "latent": (ALL, layout(LATENT, shard=2)),
    "latent experts": (
        ALL,
        layout(replace(LATENT, experts=4, experts_per_token=2, moe_ffn=32, dense_layers=2), shard=2, expert=2),
    ),
    "mostly dense": (ALL, layout(replace(MIXED, dense_layers=7, layers=9), shard=2, expert=2)),
    "first stage": ((True, False), layout(replace(DENSE, layers=32), pipeline=4, micro_batches=5, shard=2)),
    "middle stage": (MIDDLE, layout(replace(DENSE, layers=32), pipeline=4, micro_batches=5, shard=2, tensor=2)),
    "last stage": ((False, True), layout(replace(DENSE, layers=28), pipeline=4, micro_batches=4, zero="none")),
}


def kind_of(case, ends):
    """What the longest stage consists of."""
    longest = case.stage_layers()[0]
    mixed = sum(map(case.arch.is_moe, longest))
    return StageKind(len(longest) - mixed, mixed, *ends)


@pytest.fixture(autouse=True)
def _unrounded(monkeypatch):
    """Bytes as they are: rounded up to the allocator's 512, some sums lie a little beside the straight line."""
    monkeypatch.setattr(trace, "ROUNDING", 1)
    monkeypatch.setattr(long_stage, "_run", long_stage.run_stage)


@pytest.mark.slow
@pytest.mark.parametrize("name", sample(list(CASES), one_in=12))
def test_a_long_stage_is_the_one_that_runs_whole(name):
    ends, case = CASES[name]
    kind = kind_of(case, ends)
    assert max(kind.dense, kind.mixed) > FEW + 1
    whole, grown = run_stage(case, kind), run_long_stage(case, kind)
    assert grown.parameters == whole.parameters
    assert grown.expert_parameters == whole.expert_parameters
    assert list(grown.actions) == list(whole.actions)
    compared = 0
    for action, places in whole.actions.items():
        others = grown.actions[action]
        assert len(places) == len(others), action
        for at, (place, other) in enumerate(zip(places, others, strict=True)):
            where = f"{action}, place {at} ({place.name})"
            assert place.events == other.events, where
            assert place.recomputed_flops == other.recomputed_flops, where
            if other.peak:  # not a repeated block
                assert (place.start, place.peak, place.end) == (other.start, other.peak, other.end), where
                compared += 1
        known = max(place.peak.total() for place in others)  # the peak must be in a place whose bytes are known
        assert max(place.peak.total() for place in places) == known, action
    assert compared > 10


ALIKE = {
    "schedule": layout(pipeline=4, schedule="gpipe", micro_batches=6, shard=2),
    "pieces": layout(pipeline=4, schedule="interleaved", virtual_stages=2, micro_batches=8, zero="none"),
    "replicas": layout(shard=2, replicate=4),
    "copies": layout(shard=4, replicate=2, zero="none"),
    "copies of sharded state": layout(shard=2, replicate=4, zero="zero1", engine="megatron"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sample(list(ALIKE), one_in=6))
def test_the_plainest_of_alike_layouts_runs_the_same(name, monkeypatch):
    monkeypatch.setattr(trace, "ROUNDING", ROUNDING)  # a mesh's table has four bytes a rank
    case = ALIKE[name]
    assert long_stage.run_key(case) != case
    kind = StageKind(2, 0, True, False)
    assert run_stage(long_stage.run_key(case), kind) == run_stage(case, kind)
