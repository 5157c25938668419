"""BERT, T5 and multi-token prediction: their parameters, FLOPs and bytes, and what they are refused with."""

from dataclasses import replace

from helpers.meter.work import Work
from helpers.planner.config import RecipeError
from helpers.planner.layout.long_stage import run_long_stage
from helpers.planner.layout.stage_run import BACKWARD, FORWARD, StageKind, run_stage

import pytest

from tests.planner.layout.small import DENSE, MIXED, layout

WIDE = replace(DENSE, layers=3, hidden=128, heads=2, kv_heads=2, head_dim=64, ffn=512, vocab=1024)
MODELS = {
    "masked": replace(WIDE, masked=True),
    "pairs": replace(WIDE, masked=True, pairs=True, positions=256),
    "encoder-decoder": replace(WIDE, encoder_layers=2),
    "further": replace(WIDE, further=2),
    "further experts": replace(MIXED, layers=3, further=1, shared_experts=0.5),
}


def case_of(name, **changes):
    """Return a layout of one of the models, and what its only stage consists of."""
    arch = MODELS[name]
    alone = {"engine": "megatron", "zero": "none", "seq": 256, "precision": "bf16-amp"}
    target = {"target_seq": 64} if arch.encoder_layers else {}
    mixed = arch.layers - arch.first_blocks if arch.experts else arch.layers if arch.encoder_layers else 0
    dense = arch.encoder_layers + arch.layers - mixed
    return layout(arch, **alone | target | changes), StageKind(dense, mixed, True, True)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_the_parameters_that_are_counted(name):
    case, kind = case_of(name)
    run, arch = run_stage(case, kind), case.arch
    tables = (max(arch.positions, case.seq) * bool(arch.positions) + 2 * arch.pairs) * arch.hidden
    small = 0
    if arch.masked:  # biases and a norm before the logits, a bias of these, and two logits of a pair
        small = 3 * arch.hidden + arch.vocab + arch.pairs * (arch.hidden + 2 * arch.hidden + 2)
    assert run.parameters + run.expert_parameters == arch.count() + tables + small


@pytest.mark.parametrize("name", [name for name in MODELS if "experts" not in name])
def test_a_model_computes_the_flops_that_are_forecast(name):
    case, kind = case_of(name, attention="eager")
    run, arch = run_stage(case, kind), case.arch
    passes = [place for key, places in run.actions.items() if key[0] in (FORWARD, BACKWARD) for place in places]
    flops = sum(event.flops for place in passes for event in place.events if isinstance(event, Work))
    causal = 0 if arch.masked else arch.layers + arch.further
    # Scores in memory are computed whole where half of them is masked.
    masked = 6 * causal * arch.heads * arch.head_dim * (case.target_seq or case.seq) ** 2
    assert flops == pytest.approx(case.flops_per_token * case.seq + masked, rel=0.005)


def test_attention_that_looks_both_ways_keeps_a_mask_in_each_block_of_transformer_engine():
    case, kind = case_of("masked", attention="eager", dropout=0.1)
    kept = [
        run_stage(each, kind).actions[FORWARD, "last"][-1].end.total()
        for each in (case, replace(case, own_modules=True))
    ]
    assert kept[0] - kept[1] == 3 * 256 * 256


def test_a_deep_encoder_decoder_follows_from_a_shallow_one():
    deep = replace(MODELS["encoder-decoder"], encoder_layers=7, layers=3)
    case = replace(case_of("encoder-decoder")[0], arch=deep)
    kind = StageKind(7, 3, True, True)
    whole, grown = run_stage(case, kind), run_long_stage(case, kind)
    assert grown.parameters == whole.parameters
    for action, places in whole.actions.items():
        for place, other in zip(places, grown.actions[action], strict=True):
            assert place.events == other.events
            if other.peak and action[0] in (FORWARD, BACKWARD):
                assert place.peak.total() == pytest.approx(other.peak.total(), abs=1024 * 8)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("masked", {"engine": "pytorch"}, "need engine megatron"),
        ("masked", {"context": 2}, "not causal"),
        ("encoder-decoder", {"pipeline": 2}, "does not train T5 in a pipeline"),
        ("encoder-decoder", {"tensor": 2, "target_seq": 63}, "not a multiple of the 2 tensor ranks"),
        ("further", {"target_seq": 64}, "this model is none"),
        ("encoder-decoder", {"lora_rank": 4}, "without experts, latent attention, further tokens and adapters"),
    ],
)
def test_what_is_not_planned_is_refused(name, changes, words):
    with pytest.raises(RecipeError, match=words):
        case_of(name, **changes)
