"""A deep model's step, made from two shallow copies, is the step that is run whole: each event, each figure."""

import json
import random
from dataclasses import replace
from itertools import groupby

from helpers.planner import ParallelConfig, Recipe, RecipeError
from helpers.planner.allocator import ROUNDING
from helpers.planner.catalog import spec_of
from helpers.planner.replay import in_order, replay
from helpers.planner.simulate import simulate, steps
from helpers.planner.simulate.repeat import depths, repeated

import pytest

from tests.sampling import sample_with_quick

LLAMA = {"model_type": "llama", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 96}
LLAMA |= {"num_hidden_layers": 9, "num_attention_heads": 4}
MISTRAL, QWEN2, QWEN3 = (LLAMA | {"model_type": name} for name in ("mistral", "qwen2", "qwen3"))
GPT2 = {"model_type": "gpt2", "vocab_size": 512, "n_embd": 64, "n_layer": 8, "n_head": 4, "n_positions": 128}
BERT = {"model_type": "bert", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 8}
BERT |= {"num_attention_heads": 4, "architectures": ["BertForMaskedLM"]}
SHARDED = ParallelConfig(shard=8, zero="zero3")
# Types that are compared block by block before they are run; Gemma 2's take turns, Gemma 3's after six.
GEMMA, PHI3, OLMO2, GRANITE, GLM4 = (
    LLAMA | {"model_type": name, "pad_token_id": 0} for name in ("gemma", "phi3", "olmo2", "granite", "glm4")
)
GEMMA2 = LLAMA | {"model_type": "gemma2", "num_hidden_layers": 12, "head_dim": 16, "sliding_window": 32}
GEMMA3 = LLAMA | {"model_type": "gemma3_text", "num_hidden_layers": 25, "head_dim": 16, "sliding_window": 32}
NEOX = LLAMA | {"model_type": "gpt_neox", "max_position_embeddings": 128}
OPT = {"model_type": "opt", "vocab_size": 512, "hidden_size": 64, "ffn_dim": 96, "num_hidden_layers": 9}
OPT |= {"num_attention_heads": 4, "word_embed_proj_dim": 64, "max_position_embeddings": 128}
ROBERTA = BERT | {"model_type": "roberta", "architectures": ["RobertaForSequenceClassification"]}
VIT = {"model_type": "vit", "image_size": 32, "patch_size": 8, "hidden_size": 64, "intermediate_size": 96}
VIT |= {"num_hidden_layers": 9, "num_attention_heads": 4}
# An encoder and a decoder of as many blocks, and experts.
T5 = {"model_type": "t5", "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 10, "num_heads": 4, "vocab_size": 512}
BART = {"model_type": "bart", "d_model": 64, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "vocab_size": 512}
BART |= {"encoder_layers": 8, "decoder_layers": 8, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
BART |= {"max_position_embeddings": 128}
WHISPER = BART | {"model_type": "whisper", "max_source_positions": 32, "max_target_positions": 128, "pad_token_id": 0}
MIXTRAL = LLAMA | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2}
OTHERS = [
    (T5, {"precision": "bf16", "checkpointing": "every"}),
    (T5, {"parallel": SHARDED, "target_seq": 16}),
    (BART, {"precision": "fp16-amp", "optimizer_impl": "fused"}),
    (WHISPER, {"precision": "fp16-amp", "checkpointing": "every"}),
    (MIXTRAL, {"precision": "bf16", "quantize": "nf4", "lora_rank": 4, "quantized_inputs": True}),
    (GEMMA, {"precision": "bf16", "checkpointing": "every"}),
    (GEMMA2, {"precision": "bf16", "lora_rank": 4}),
    (GEMMA2, {"checkpointing": "every", "optimizer": "adamw-8bit", "attention": "eager"}),
    (GEMMA3, {"checkpointing": "every", "precision": "bf16-amp"}),
    (PHI3, {"precision": "bf16", "lora_rank": 4, "lora_targets": ("qkv_proj",), "quantize": "nf4"}),
    (OLMO2, {"compile": True, "optimizer_impl": "fused"}),
    (GRANITE, {"step_in_backward": True, "precision": "bf16"}),
    (GLM4, {"gradient_accumulation_steps": 2}),
    (NEOX, {"precision": "fp16-amp", "lora_rank": 4}),
    (OPT, {"dropout": 0.1, "checkpointing": "every"}),
    (ROBERTA, {"optimizer": "sgd-momentum"}),
    (VIT, {"precision": "bf16-amp", "seq": 512, "optimizer_impl": "fused"}),
]
CASES = [
    (LLAMA, {}),
    (LLAMA, {"lora_rank": 4, "precision": "bf16"}),
    (LLAMA, {"lora_rank": 4, "quantize": "nf4-dq", "precision": "bf16", "checkpointing": "every"}),
    (LLAMA, {"checkpointing": "every", "gradient_accumulation_steps": 3, "precision": "bf16-amp"}),
    (LLAMA, {"step_in_backward": True, "optimizer": "adamw-8bit", "attention": "eager"}),
    (LLAMA, {"compile": True, "optimizer_impl": "fused"}),
    (LLAMA, {"offload": "optimizer", "set_to_none": False}),
    (LLAMA, {"expandable_segments": True, "precision": "bf16-amp", "optimizer": "adamw-32bit-paged"}),
    (LLAMA | {"tie_word_embeddings": True, "num_key_value_heads": 2}, {"optimizer": "adafactor"}),
    (LLAMA, {"method": "dpo", "optimizer": "muon"}),
    (LLAMA, {"method": "grpo", "lora_rank": 4, "lora_dropout": 0.1}),
    (LLAMA, {"lengths": (64, 128, 32), "loss": "chunked"}),
    (LLAMA, {"packed": 32, "loss": "fused", "master_weights": True, "precision": "bf16"}),
    (LLAMA, {"parallel": SHARDED, "lora_rank": 4, "quantize": "nf4-dq", "precision": "bf16", "checkpointing": "every"}),
    (LLAMA | {"num_key_value_heads": 2}, {"parallel": SHARDED, "precision": "bf16-amp"}),
    (LLAMA, {"offload": "all", "checkpointing": "every", "gradient_accumulation_steps": 2}),
    (MISTRAL | {"sliding_window": None}, {"checkpointing": "every"}),
    (QWEN2, {"gradient_accumulation_steps": 2, "precision": "bf16-amp"}),
    (QWEN3 | {"head_dim": 32}, {"lora_rank": 4, "checkpointing": "every", "precision": "bf16"}),
    (QWEN3 | {"head_dim": 32}, {"parallel": SHARDED, "quantize": "nf4", "lora_rank": 4, "precision": "bf16"}),
    (GPT2, {"precision": "fp16-amp", "dropout": 0.1}),
    (GPT2, {"lora_rank": 4, "dora": True}),
    (BERT, {"optimizer": "sgd-momentum", "optimizer_impl": "for-loop"}),
    (BERT, {"freeze": ("embeddings",), "optimizer": "galore", "galore_rank": 8}),
]
CHOICES = {
    "precision": ("fp32", "bf16", "bf16-amp", "fp16-amp"),
    "checkpointing": ("none", "every"),
    "optimizer": ("adamw", "sgd", "sgd-momentum", "adafactor", "adamw-8bit-paged", "lion", "muon"),
    "optimizer_impl": ("foreach", "fused", "for-loop"),
    "attention": ("sdpa", "eager"),
    "lora_rank": (0, 4),
    "quantize": ("none", "nf4", "int8"),
    "gradient_accumulation_steps": (1, 2, 3),
    "step_in_backward": (True, False),
    "compile": (True, False),
    "set_to_none": (True, False),
    "method": ("sft", "dpo"),
    "dropout": (None, 0.1),
    "offload": ("none", "optimizer", "all"),
    "parallel": (ParallelConfig(), SHARDED),
}
FIGURES = (
    *("flops", "recomputed_flops", "sent", "host_bytes", "parameters", "trained"),
    *("parameter_bytes", "trained_bytes", "state_bytes", "batch_norm"),
)


def recipe_of(folder, config, changes):
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return Recipe(str(path), **({"micro_batch_size": 2, "seq": 128} | changes))


def events(blocks):
    """Return all requests and releases in order, whatever the clock says; between two requests, releases as a set.

    Sizes are in the allocator's rounding: PyTorch's cache of fake results may cut the padding off the end of one.
    """
    numbers = {}
    for over, moments in groupby(in_order(blocks), key=lambda moment: moment[0]):
        if over:
            yield "frees", {numbers[id(block)] for _, block in moments}
            continue
        for _, block in moments:
            numbers[id(block)] = len(numbers)
            yield "asks", -(-block.nbytes // ROUNDING), block.category, block.op[1:], block.recomputed


def assert_same(recipe, monkeypatch):
    made = simulate(recipe)
    monkeypatch.setattr(steps, "depths", lambda *_: None)
    run = simulate(recipe)
    assert list(events(made.blocks)) == list(events(run.blocks))
    assert {name: getattr(made, name) for name in FIGURES} == {name: getattr(run, name) for name in FIGURES}
    for ours, theirs in zip(made.works, run.works, strict=True):
        assert replace(ours, times=1) == replace(theirs, times=1)
        assert ours.times == pytest.approx(theirs.times, rel=1e-12)  # of three steps, a third each
    ours, theirs = (vars(replay(each.blocks, recipe.expandable_segments)) for each in (made, run))
    assert ours | {"op": ours["op"][1:]} == theirs | {"op": theirs["op"][1:]}


@pytest.mark.parametrize(("config", "changes"), sample_with_quick(CASES + OTHERS, one_in=3, quick_one_in=18), ids=str)
def test_a_repeated_block_is_a_block_that_runs(config, changes, tmp_path, monkeypatch):
    recipe = recipe_of(tmp_path, config, changes)
    assert depths(recipe, spec_of(recipe))
    assert_same(recipe, monkeypatch)


@pytest.mark.parametrize("seed", sample_with_quick(range(30), one_in=10, quick_one_in=9))
def test_so_it_is_for_whatever_is_combined(seed, tmp_path, monkeypatch):
    chance = random.Random(seed)
    config = chance.choice((LLAMA, LLAMA | {"tie_word_embeddings": True}, MISTRAL, QWEN2, QWEN3, GPT2, BERT))
    for _ in range(100):
        changes = {name: chance.choice(values) for name, values in CHOICES.items() if chance.random() < 0.4}
        try:
            recipe = recipe_of(tmp_path, config, changes)
            spec = spec_of(recipe)
            break
        except RecipeError:  # these do not go together
            continue
    assert depths(recipe, spec)
    try:
        assert_same(recipe, monkeypatch)
    except RecipeError:  # the model has no logits for this loss
        assert "method" in changes


def test_what_has_no_equal_blocks_is_run_whole(tmp_path):
    def deep(config, **changes):
        recipe = recipe_of(tmp_path, config, changes)
        return depths(recipe, spec_of(recipe))

    assert deep(LLAMA) == (3, 4)
    assert deep(LLAMA | {"num_hidden_layers": 7}) is None  # as many as the copies have
    for which in ("every-2", "sqrt"):
        assert deep(LLAMA, checkpointing=which) is None
    assert deep(LLAMA, freeze=("model.layers.0",)) is None
    for zero in ("none", "zero1", "zero2"):  # DDP's buckets end within a block
        assert deep(LLAMA, parallel=ParallelConfig(shard=2, zero=zero)) is None
    assert deep(GEMMA) == (3, 4)
    assert deep(GEMMA2) == (4, 6)  # whose kinds take turns: as even as the model
    assert deep(GEMMA2 | {"num_hidden_layers": 9}) == (3, 5)
    assert deep(GEMMA3) == (7, 13)
    assert deep(GEMMA3 | {"num_hidden_layers": 18}) is None  # the copies would be as deep
    assert deep(GEMMA2 | {"layer_types": ["sliding_attention"] * 3 + ["full_attention"] * 9}) is None
    assert deep({"model_type": "swin", "embed_dim": 24, "image_size": 64}) is None  # stages of several widths


def test_records_that_do_not_repeat_are_not_continued(tmp_path):
    few, more = (simulate(recipe_of(tmp_path, LLAMA | {"num_hidden_layers": n}, {})).blocks for n in (3, 4))
    assert len(repeated(few, more, 1)) == len(more)
    assert len(repeated(few, more, 3)) == len(more) + 2 * (len(more) - len(few))
    assert repeated(few, more[:-9] + more[-3:], 1) is None
