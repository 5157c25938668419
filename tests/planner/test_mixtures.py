"""Mixtures of experts with a quantized base, in a plain PyTorch loop."""

import json
from dataclasses import replace

from helpers.planner import Recipe, RecipeError, plan
from helpers.planner.described import described

import pytest

SIZES = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "pad_token_id": 0}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "num_experts_per_tok": 2, "tie_word_embeddings": False}
MIXTURES = {
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": {"num_experts": 8, "moe_intermediate_size": 32, "head_dim": 16},
    "olmoe": {"num_experts": 4},
}
EXPERTS = {"mixtral": (4, 96), "qwen3_moe": (8, 32), "olmoe": (4, 96)}  # how many in a block, and their inner size
QLORA = {"quantize": "nf4", "lora_rank": 4, "lora_targets": ("q_proj", "v_proj"), "micro_batch_size": 4, "seq": 128}


@pytest.fixture
def config(tmp_path):
    def write(model_type, **more):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"model_type": model_type} | SIZES | MIXTURES.get(model_type, {}) | more))
        return str(path)

    return write


@pytest.mark.parametrize("model_type", MIXTURES)
def test_the_experts_are_kept_in_4_bits_and_each_works(config, model_type):
    recipe = Recipe(config(model_type), **QLORA)
    answer, number = plan(recipe), EXPERTS[model_type][0] * 3 * 64 * EXPERTS[model_type][1] * 3  # in three blocks
    more = plan(replace(recipe, model=config(model_type, num_hidden_layers=4)))
    grown = more.at_peak["parameters"] - answer.at_peak["parameters"]
    # A block more: experts and attention in 4 bits with their scales; norms, the router and adapters in full.
    packed = (number / 3 + 64 * (64 + 32 + 32 + 64)) * (0.5 + 4 / 64)
    rounding = 1024 * (3 * EXPERTS[model_type][0] + 4)  # scales and a code book for each layer, in 512 bytes or more
    assert packed < grown < packed + rounding + 10_000


def test_a_token_pays_for_the_experts_that_it_goes_to(config):
    flops = [plan(Recipe(config("mixtral", num_experts_per_tok=each), **QLORA)).flops for each in (2, 4)]
    matmul = 2 * 4 * 128 * 64 * 96  # for one expert a token
    assert flops[1] - flops[0] == 2 * 3 * 3 * 2 * matmul  # two more experts, three matrices, forward and back, 3 blocks


def test_all_linear_gives_each_expert_adapters(config):
    recipe = Recipe(config("mixtral"), **QLORA)
    few, every = plan(recipe), plan(replace(recipe, lora_targets=("all-linear",)))
    attention, experts = 4 * (4 * 64 + 2 * 64 + 2 * 32), 4 * 4 * 3 * (64 + 96)
    assert few.trained == 3 * 4 * (64 + 64 + 64 + 32)
    assert every.trained == 3 * (attention + experts)


def test_tokens_are_spread_over_the_experts_evenly(config):
    model = config("mixtral")
    twice = config("mixtral", num_local_experts=8)
    flops = [plan(Recipe(each, **QLORA)).flops for each in (model, twice)]
    assert flops[1] == pytest.approx(flops[0], rel=0.01)  # more experts, each with fewer tokens


def test_a_mixture_is_planned_so_only_with_a_quantized_base(config):
    model = config("mixtral")
    with pytest.raises(RecipeError, match="only with a quantized base"):
        plan(Recipe(model))
    asked = described({"model": model, "quantize": "nf4", "lora_rank": 4})
    assert asked.config.engine == "pytorch"
    assert not asked.config.by_blocks
    assert described({"model": model, "engine": "torchtitan"}).config.by_blocks
    with pytest.raises(RecipeError, match="whose weights are not planned in 4 or 8 bits"):
        plan(Recipe(config("gpt_oss", num_local_experts=4, head_dim=16), **QLORA))
