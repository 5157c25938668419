"""A config's class is the one that is planned, or it is refused by its name."""

import json
from dataclasses import replace

from helpers.planner import Recipe, RecipeError, plan
from helpers.planner.catalog.archs import arch_of
from helpers.planner.catalog.models import find_model
from helpers.planner.described import described
from helpers.planner.measure import measure_recipe
from helpers.planner.simulate.blocks import find_blocks

import pytest
import torch

BERT = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA = BERT | {"num_key_value_heads": 4, "vocab_size": 1000}
T5 = {"d_model": 128, "d_kv": 32, "d_ff": 512, "num_layers": 2, "num_heads": 4, "vocab_size": 1000, "dropout_rate": 0.0}
BART = {"d_model": 128, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 1000, "dropout": 0.0}
BART |= {
    f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in (("ffn_dim", 512), ("attention_heads", 4))
}
PLANNED = {
    "BertForSequenceClassification": ("bert", BERT),
    "BertForTokenClassification": ("bert", BERT),
    "BertForQuestionAnswering": ("bert", BERT),
    "BertForMaskedLM": ("bert", BERT),
    "LlamaForSequenceClassification": ("llama", LLAMA),
    "T5ForConditionalGeneration": ("t5", T5),
    "BartForConditionalGeneration": ("bart", BART),
    "BartForCausalLM": ("bart", BART),
    "WhisperForConditionalGeneration": (
        "whisper",
        BART | {"max_source_positions": 100, "pad_token_id": 0, "decoder_start_token_id": 1},
    ),
}
VISION = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}
VISION |= {"image_size": 56, "patch_size": 14}
TEXT = LLAMA | {"head_dim": 32}
SEES = {  # class -> model type, that of its tower, that of its text, and what else its config says
    "LlavaForConditionalGeneration": ("llava", "clip_vision_model", "llama", {"image_token_index": 7}),
    "PaliGemmaForConditionalGeneration": ("paligemma", "siglip_vision_model", "gemma", {"projection_dim": 128}),
    "Gemma3ForConditionalGeneration": ("gemma3", "siglip_vision_model", "gemma3_text", {"mm_tokens_per_image": 4}),
}
REFUSED = {
    "Qwen2VLForConditionalGeneration": "qwen2_vl",
    "BertModel": "bert",
    "BertForNextSentencePrediction": "bert",
    "LlamaForCausalLM": "bert",
}


@pytest.fixture
def config(tmp_path):
    def write(model_type, sizes, named):
        path = tmp_path / "config.json"
        architectures = {"architectures": [named]} if named else {}
        path.write_text(json.dumps({"model_type": model_type, **sizes, **architectures}))
        return str(path)

    return write


@pytest.mark.parametrize("named", PLANNED)
def test_the_class_that_is_named_is_built_and_planned(config, named):
    import transformers

    model = config(*PLANNED[named], named)
    recipe = Recipe(model, precision="fp32", micro_batch_size=4, seq=64)
    spec = find_model(model)
    assert spec.called == named
    built = spec.build(recipe, torch.float32)
    assert type(built) is getattr(transformers, named)
    answer = plan(recipe)
    assert answer.parameters == sum(parameter.numel() for parameter in built.parameters())
    measured = measure_recipe(recipe, torch.device("cpu")).peak_bytes
    assert answer.peak_allocated_bytes == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize("named", ["T5ForConditionalGeneration", "WhisperForConditionalGeneration"])
def test_the_blocks_of_encoder_and_decoder_are_recomputed(config, named):
    model = config(*PLANNED[named], named)
    recipe = Recipe(model, precision="fp32", micro_batch_size=16, seq=256)
    built = find_model(model).build(recipe, torch.float32)
    blocks = find_blocks(built)
    sides = [name for name, module in built.named_modules() if any(module is block for block in blocks)]
    assert len(blocks) == len(sides) == 4
    assert any("encoder" in side for side in sides)
    assert any("decoder" in side for side in sides)
    plain, recomputed = (plan(replace(recipe, checkpointing=which)) for which in ("none", "every"))
    assert recomputed.peak_allocated_bytes < plain.peak_allocated_bytes
    assert recomputed.recomputed_share > 0


def test_a_decoder_may_write_less_than_its_encoder_reads(config):
    model = config(*PLANNED["T5ForConditionalGeneration"], "T5ForConditionalGeneration")
    recipe = Recipe(model, precision="fp32", micro_batch_size=16, seq=256)
    short = replace(recipe, target_seq=32)
    answers = plan(recipe), plan(short)
    assert answers[1].flops < 0.7 * answers[0].flops
    assert answers[1].peak_allocated_bytes < answers[0].peak_allocated_bytes
    assert plan(replace(recipe, target_seq=256)).peak_allocated_bytes == answers[0].peak_allocated_bytes
    with pytest.raises(RecipeError, match="leave target_seq out"):
        plan(Recipe("small-gpt", target_seq=8))


def test_no_block_is_left_out_at_random(config):
    sizes = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 500}
    sizes |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 64}
    flops = [
        plan(Recipe(config("bart", sizes | {"encoder_layerdrop": drop, "decoder_layerdrop": drop}, ""), seq=64)).flops
        for drop in (0.0, 0.5)
    ]
    assert flops[0] == flops[1]


@pytest.mark.parametrize("model_type", ["phi3", "olmo2", "granite", "glm4", "smollm3"])
def test_where_peft_has_no_choice_all_linear_layers_get_adapters(config, model_type):
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = config(model_type, sizes | {"num_key_value_heads": 2, "vocab_size": 500, "pad_token_id": 0}, "")
    recipe = Recipe(model, lora_rank=4, seq=64)
    assert plan(recipe).trained == plan(replace(recipe, lora_targets=("all-linear",))).trained > 0
    assert "all linear layers, since PEFT has no choice" in described({"model": model, "lora_rank": 4}).heading
    given = {"lora_rank": 4, "lora_dropout": 0.1, "lora_targets": ("c_attn", "c_proj"), "seq": 512, "packed": 128}
    said = described({"model": "gpt2", **given}).heading.splitlines()
    assert said[1] == "  also: lora targets c_attn, c_proj; lora dropout 0.1; packed 128"
    assert not any(line.startswith("  also:") for line in described({"model": "gpt2"}).heading.splitlines())
    assert "lora targets PEFT's choice" in described({"model": "gpt2", "lora_rank": 4}).heading


@pytest.mark.parametrize("named", SEES)
def test_a_tower_is_planned_with_its_text_trained_or_frozen(config, named, monkeypatch):
    monkeypatch.setenv("TRANSFORMERS_DISABLE_TORCH_CHECK", "1")  # these texts say nothing of their images
    model_type, tower, text, more = SEES[named]
    sizes = {"vision_config": VISION | {"model_type": tower}, "text_config": TEXT | {"model_type": text}}
    recipe = Recipe(config(model_type, sizes | more, named), precision="fp32", micro_batch_size=8, seq=32)
    built = find_model(recipe.model).build(recipe, torch.float32)
    assert find_model(recipe.model).called == type(built).__name__ == named
    in_tower = sum(p.numel() for name, p in built.named_parameters() if "vision" in name)
    whole, frozen = plan(recipe), plan(replace(recipe, freeze=("vision_tower",)))
    assert whole.parameters == whole.trained == sum(p.numel() for p in built.parameters())
    assert frozen.trained == whole.trained - in_tower
    # Gradients, and two moments of what the text sees: not of the tower's last layers.
    assert 2 * 4 * in_tower < whole.floor_bytes - frozen.floor_bytes <= 3 * 4 * in_tower
    assert frozen.peak_allocated_bytes < whole.peak_allocated_bytes
    measured = measure_recipe(replace(recipe, freeze=("vision_tower",)), torch.device("cpu")).peak_bytes
    assert frozen.peak_allocated_bytes == pytest.approx(measured, rel=0.05)
    assert plan(replace(recipe, image_size=112)).flops > whole.flops


@pytest.mark.parametrize("named", REFUSED)
def test_any_other_class_is_refused_by_its_name(config, named):
    model = config(REFUSED[named], {}, named)
    with pytest.raises(RecipeError, match=f"a {named}, which is not planned"):
        plan(Recipe(model))
    with pytest.raises(RecipeError, match=named):
        arch_of(model)


def test_a_config_without_a_class_is_that_of_its_type(config):
    usual = {"bert": "BertForMaskedLM", "t5": "T5ForConditionalGeneration", "llama": "LlamaForCausalLM"}
    usual["whisper"] = "WhisperForConditionalGeneration"
    for model_type, called in usual.items():
        assert find_model(config(model_type, {}, "")).called == called


def test_an_answer_names_the_lengths_of_both_sequences():
    assert (
        "sequences of 64 tokens and answers of 8"
        in described({"model": "t5-small", "seq": 64, "target_seq": 8}).heading
    )
    assert "target seq as long as seq" in described({"model": "t5-small"}).heading
    assert "target seq" not in described({"model": "whisper-tiny"}).heading
    assert "pairs of sequences of 512 tokens" in described({"model": "gpt2", "method": "dpo"}).heading
