"""The planner against arithmetic and the models' own papers."""

import json
from dataclasses import replace

from helpers import MemoryMeter
from helpers.planner import ParallelConfig, Recipe, RecipeError, plan, plan_many
from helpers.planner.catalog import model_names, spec_of
from helpers.planner.config import ZEROS
from helpers.planner.simulate import simulate

import pytest
import torch

from tests.planner.support import GPT2, GPT2_PARAMETERS, LLAMA, LLAMA_PARAMETERS, PARAMETERS, SMALL, peak
from tests.sampling import sample


@pytest.mark.slow
def test_every_model_of_the_catalog_is_the_real_one_and_can_be_planned():
    recipes = [Recipe(name, seq=64) for name in sample(model_names(), one_in=12)]
    for recipe, answer in zip(recipes, plan_many(recipes), strict=True):
        assert answer.peak_allocated_bytes > 2 * answer.parameters
        assert answer.parameters == PARAMETERS.get(recipe.model, answer.parameters)
    assert set(PARAMETERS) == {name for name in model_names() if not name.startswith("small")}


def buffer_bytes(recipe: Recipe) -> int:
    """Return the bytes of a model's buffers: GPT-2 has some in Transformers 4, where each block keeps its mask."""
    return sum(buffer.nbytes for buffer in spec_of(recipe).build(recipe, recipe.weight_dtype).buffers())


def test_categories_of_full_training_in_bf16():
    recipe = Recipe(GPT2, micro_batch_size=1, seq=32)
    answer = plan(recipe)
    weights = 2 * answer.parameters + buffer_bytes(recipe)
    assert answer.at_peak["parameters"] == pytest.approx(weights, rel=0.04)  # and rests of the allocator
    assert answer.at_peak["gradients"] == pytest.approx(2 * answer.parameters, rel=0.04)
    assert answer.at_peak["optimizer state"] == pytest.approx(4 * answer.parameters, rel=0.04)
    assert answer.at_peak["temporaries"] == pytest.approx(2 * answer.parameters, rel=0.04)  # foreach
    assert "foreach" in answer.peak_at


@pytest.mark.slow
def test_optimizers_keep_what_they_keep():
    base = Recipe(GPT2, precision="fp32", seq=32)
    n = GPT2_PARAMETERS

    def state(**changes):
        return simulate(replace(base, **changes)).state_bytes / n

    assert state(optimizer="adamw") == pytest.approx(8, rel=0.01)
    assert state(optimizer="adamw", optimizer_impl="fused") == pytest.approx(8, rel=0.01)
    assert state(optimizer="adam", optimizer_impl="for-loop") == pytest.approx(8, rel=0.01)
    assert state(optimizer="sgd") == 0
    assert state(optimizer="sgd-momentum") == pytest.approx(4, rel=0.01)
    assert state(optimizer="adamw-8bit") == pytest.approx(2 + 8 / 256, rel=0.01)
    assert state(optimizer="adafactor") < 0.1


def test_fused_needs_no_second_copy_of_the_parameters():
    def temporaries(how):
        blocks = simulate(Recipe(GPT2, seq=32, optimizer_impl=how), repeat=False).blocks
        made = [b for b in blocks if b.category == "temporaries" and b.op.phase == "optimizer step"]
        return sum(b.nbytes for b in made) / 2  # two steps

    assert temporaries("foreach") == pytest.approx(2 * GPT2_PARAMETERS, rel=0.01)
    assert temporaries("fused") < 0.01 * GPT2_PARAMETERS


def test_flops_are_six_a_parameter_and_token():
    answer = plan(Recipe(LLAMA, seq=512))
    matrices = answer.parameters - 32000 * 4096  # the input embedding is looked up, not multiplied
    attention = 12 * 2 * 4096 * 512  # scores and weighted sums, forward and backward, a token
    assert answer.flops == pytest.approx(512 * (6 * matrices + attention), rel=0.05)
    assert answer.recomputed_share == 0
    assert answer.roofline_seconds["a100-80gb"] >= answer.flops / 312e12


@pytest.mark.slow
def test_checkpointing_trades_memory_for_flops():
    base = Recipe(GPT2, micro_batch_size=16, seq=512, precision="bf16-amp")
    plans = {
        which: plan(replace(base, checkpointing=which)) for which in ("none", "every-3", "every-2", "every", "sqrt")
    }
    peaks = {which: plans[which].peak_allocated_bytes for which in plans}
    assert peaks["every"] < min(peaks["every-2"], peaks["every-3"])  # these two are nearly alike with four blocks
    assert max(peaks["every-2"], peaks["every-3"]) < peaks["none"]
    assert plans["sqrt"].peak_allocated_bytes < 0.7 * plans["none"].peak_allocated_bytes
    shares = [plans[which].recomputed_share for which in ("none", "every-3", "every-2", "every")]
    assert shares == sorted(shares)
    assert 0.15 < plans["every"].recomputed_share < 0.25  # one of four passes, less what early stopping spares
    assert plans["none"].parameters == plans["sqrt"].parameters


@pytest.mark.slow
def test_eager_attention_grows_with_the_square_of_the_sequence():
    base = Recipe(GPT2, precision="bf16-amp", optimizer="sgd", attention="eager")

    def scores(seq):
        return peak(base, seq=seq) - peak(base, seq=seq, attention="sdpa")

    assert scores(1024) / scores(512) == pytest.approx(4, rel=0.1)


def test_accumulation_costs_the_gradients_and_no_more():
    base = Recipe("small-gpt", precision="fp32", micro_batch_size=64, seq=256, optimizer="sgd")
    one, four = peak(base, micro_batch_size=16), peak(base, micro_batch_size=16, gradient_accumulation_steps=4)
    assert 0 < four - one <= 4 * plan(base).parameters * 1.1
    assert peak(base) > 2.5 * four
    assert (
        peak(base, micro_batch_size=16, gradient_accumulation_steps=2)
        == four
        == peak(base, micro_batch_size=16, gradient_accumulation_steps=64)
    )


@pytest.mark.slow
def test_step_in_backward_never_holds_all_gradients():
    base = Recipe("vit-l-16", precision="fp32", optimizer="adam", optimizer_impl="for-loop")
    assert peak(base) - peak(base, step_in_backward=True) > 0.7 * 4 * 304_326_632


def test_kept_gradients_live_through_the_forward_pass():
    base = Recipe("small-gpt", precision="fp32", micro_batch_size=64, seq=256)
    assert 0 < peak(base, set_to_none=False) - peak(base) < 1.5 * 4 * plan(base).parameters


@pytest.mark.slow
def test_quantized_bases():
    base = Recipe(LLAMA, lora_rank=8, lora_targets=("q_proj",), seq=64, checkpointing="every")
    linear = LLAMA_PARAMETERS - 2 * 32000 * 4096 - 5 * 4096  # without both embeddings and five norms
    whole = plan(base).at_peak["parameters"]
    for kind, bytes_each in (("nf4", 0.5 + 4 / 64), ("nf4-dq", 0.5 + 1 / 64 + 4 / 64 / 256), ("int8", 1.0)):
        saved = whole - plan(replace(base, quantize=kind)).at_peak["parameters"]
        assert saved == pytest.approx(linear * (2 - bytes_each), rel=0.03)


def test_layers_of_4_bits_may_keep_their_inputs():
    base = Recipe(LLAMA, lora_rank=8, lora_targets=("q_proj",), lora_dtype="weights", seq=256, quantize="nf4")
    kept = replace(base, quantized_inputs=True)
    grown = plan(kept).peak_allocated_bytes - plan(base).peak_allocated_bytes
    # What nothing else keeps, in each of two blocks: inputs of the MLP, and of its way down.
    assert 2 * 256 * (4096 + 11008) < grown < 2 * 2 * 256 * (4096 + 11008)
    recomputed = [replace(each, checkpointing="every") for each in (base, kept)]
    assert plan(recomputed[0]).at_peak["parameters"] == plan(recomputed[1]).at_peak["parameters"]
    for quantize in ("none", "int8"):
        with pytest.raises(RecipeError, match="4 bits"):
            replace(kept, quantize=quantize)


def test_gpt2s_turned_layers_are_quantized_too():
    base = Recipe(GPT2, lora_rank=8, seq=64)
    assert plan(replace(base, quantize="nf4")).at_peak["parameters"] < 0.75 * plan(base).at_peak["parameters"]


@pytest.mark.slow
def test_what_the_caller_has_switched_does_not_matter():
    expected = peak(SMALL)
    for surroundings in (
        torch.no_grad(),
        torch.inference_mode(),
        torch.autocast("cpu", torch.bfloat16),
        torch.device("meta"),
        MemoryMeter(device=torch.device("cpu")),
    ):
        with surroundings:
            assert peak(SMALL) == expected
    assert peak(SMALL) == expected


def test_a_failed_plan_leaves_nothing_behind(tmp_path):
    before, resize = peak(SMALL), torch.UntypedStorage.resize_
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", "hidden_act": "nonsense"}))
    with pytest.raises(RecipeError):
        plan(Recipe(str(path), parallel=ParallelConfig(shard=2)))
    assert torch.UntypedStorage.resize_ is resize
    assert not torch.distributed.is_initialized()
    assert peak(SMALL) == before


@pytest.mark.slow
def test_zero_stages_share_out_one_category_more_each():
    base = Recipe(GPT2, precision="fp32", seq=32)
    over = {zero: ParallelConfig(shard=4, zero=zero) for zero in ZEROS}
    n = 4 * GPT2_PARAMETERS
    ddp, one, two, three = (plan(replace(base, parallel=over[zero])) for zero in ZEROS)
    assert ddp.at_peak["gradients"] == pytest.approx(2 * n, rel=0.02)  # and once more in the buckets
    assert simulate(ddp.recipe).state_bytes == pytest.approx(2 * n, rel=0.02)
    for sharded in (one, two, three):
        assert simulate(sharded.recipe).state_bytes == pytest.approx(2 * n / 4, rel=0.3)  # whole tensors are dealt
    peaks = [answer.peak_allocated_bytes for answer in (ddp, one, two, three)]
    assert peaks == sorted(peaks, reverse=True)
    assert ddp.sent_bytes == one.sent_bytes == two.sent_bytes == 2 * 3 * n // 4
    assert three.sent_bytes == 3 * 3 * n // 4
    assert (
        plan(replace(base, parallel=over["zero3"], precision="bf16-amp")).sent_bytes == 3 * 2 * n // 4
    )  # gathered in 16 bits
    assert (
        plan(replace(base, parallel=over["zero2"], gradient_accumulation_steps=3)).sent_bytes == 3 * 4 * n // 4
    )  # reduced three times
    assert plan(base).sent_bytes == 0


def test_zero3_holds_a_part_of_everything_and_a_gathered_layer():
    recipe = Recipe(GPT2, precision="fp32", seq=32, parallel=ParallelConfig(shard=8))
    answer = simulate(recipe)
    parameters = sum(b.nbytes for b in answer.blocks if b.category == "parameters")
    assert parameters == pytest.approx(
        4 * GPT2_PARAMETERS / 8 + buffer_bytes(recipe), rel=0.05
    )  # buffers are not sharded
    assert any(b.category == "weight copies" for b in answer.blocks)


def test_offloading_moves_bytes_to_the_host():
    base = Recipe(GPT2, precision="fp32", seq=32, optimizer_impl="fused")
    n = 4 * GPT2_PARAMETERS
    plain, optimizer, everything = (plan(replace(base, offload=what)) for what in ("none", "optimizer", "all"))
    assert optimizer.at_peak["optimizer state"] == 0
    assert optimizer.host_bytes == pytest.approx(2 * n, rel=0.02)
    assert everything.host_bytes == pytest.approx(4 * n, rel=0.1)
    assert everything.at_peak["parameters"] < 0.05 * n
    assert plain.peak_allocated_bytes > optimizer.peak_allocated_bytes > everything.peak_allocated_bytes
    eight = plan(replace(base, optimizer="adamw-8bit", optimizer_impl="foreach", offload="optimizer"))
    assert eight.host_bytes == pytest.approx(n / 2, rel=0.05)  # two bytes per parameter
