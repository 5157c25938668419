"""Estimates from shallow copies: bytes near those of the whole model, and the same work."""

import json

from helpers.planner import Recipe
from helpers.planner.catalog import spec_of
from helpers.planner.catalog.gpus import GPUS
from helpers.planner.costs import forecasts
from helpers.planner.replay import replay
from helpers.planner.shallow import estimate
from helpers.planner.simulate import simulate

import pytest

from tests.sampling import sample_with_quick

SIZES = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 7, "num_attention_heads": 4}
CASES = [
    {},
    {"checkpointing": "every", "gradient_accumulation_steps": 3},
    {"precision": "bf16-amp", "attention": "eager"},
    {"step_in_backward": True, "optimizer": "adamw-8bit"},
    {"compile": True, "optimizer_impl": "fused"},
    {"lora_rank": 4, "quantize": "nf4-dq"},
    {"offload": "optimizer"},
    {"parallel": {"shard": 2, "zero": "zero2"}},
]


def recipe_of(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": "llama", "vocab_size": 512} | SIZES))
    return Recipe(str(path), **({"micro_batch_size": 4, "seq": 128} | changes))


@pytest.mark.parametrize("changes", sample_with_quick(CASES, one_in=2, quick_one_in=4), ids=str)
def test_an_estimate_is_near_the_whole_step(changes, tmp_path):
    recipe = recipe_of(tmp_path, **changes)
    guess, whole = estimate(recipe), simulate(recipe)
    played = replay(whole.blocks, False)
    assert not guess.exact
    assert guess.allocated == pytest.approx(played.peak_allocated, rel=0.015)
    assert guess.reserved >= guess.allocated
    for name in ("flops", "recomputed_flops", "parameters", "trained", "parameter_bytes", "state_bytes", "host_bytes"):
        assert getattr(guess.simulation, name) == getattr(whole, name), name
    ours, theirs = (forecasts(each, 0, [GPUS["h100-80gb"]]) for each in (guess.simulation, whole))
    assert set(ours) == set(theirs)
    for name, forecast in theirs.items():
        assert ours[name].seconds == pytest.approx(forecast.seconds, rel=1e-3)
        assert ours[name].mfu == pytest.approx(forecast.mfu, rel=1e-3)


@pytest.mark.parametrize("changes", [{"checkpointing": "sqrt"}, {"checkpointing": "every-3"}], ids=str)
def test_what_has_no_pattern_of_equal_blocks_is_run_whole(changes, tmp_path):
    """Seven blocks are not three times a number of blocks, and roots have no pattern at all."""
    recipe = recipe_of(tmp_path, seq=16, micro_batch_size=1, **changes)
    guess = estimate(recipe)
    assert guess.exact
    assert guess.allocated == replay(simulate(recipe).blocks, False).peak_allocated


def test_models_say_how_many_equal_blocks_they_have(tmp_path):
    assert spec_of(recipe_of(tmp_path)).layers == 7
    assert spec_of(recipe_of(tmp_path)).with_layers(2).layers == 2
    layers = {name: spec_of(Recipe(name)).layers for name in ("vit-b-16", "small-cnn", "resnet-50", "gpt2")}
    assert layers == {"vit-b-16": 12, "small-cnn": 0, "resnet-50": 0, "gpt2": 12}
    assert spec_of(Recipe("vit-b-16")).with_layers(3).layers == 3
