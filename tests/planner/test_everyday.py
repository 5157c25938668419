"""What people train with every day, against real steps on this machine, and against arithmetic where a GPU differs."""

import json
from dataclasses import replace

from helpers.planner import ParallelConfig, Recipe, RecipeError, plan
from helpers.planner.catalog.archs import arch_of
from helpers.planner.layout.layout import layout_of
from helpers.planner.measure import measure_recipe
from helpers.planner.replay import replay
from helpers.planner.simulate import simulate
from helpers.planner.simulate.objective import FusedLoss, log_probabilities
from helpers.planner.simulate.optimizers import matrices_of

import pytest
import torch

from tests.planner.support import GPT2

SIZES = {"model_type": "llama", "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 2000, "tie_word_embeddings": False}
IN_A_BLOCK = 4 * 128 * 128 + 3 * 128 * 384  # elements of matrices
TABLE = 2000 * 128
PARAMETERS = 4 * IN_A_BLOCK + 2 * TABLE + 9 * 128
LORA = {"lora_rank": 4, "lora_targets": ("all-linear",)}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps(SIZES))
    return Recipe(str(path), precision="fp32", micro_batch_size=4, seq=128)


REAL = (
    {"optimizer": "lion"},
    {"optimizer": "muon"},
    {"optimizer": "muon", "step_in_backward": True},
    {"precision": "bf16", "master_weights": True},
    {"precision": "bf16", "master_weights": True, "optimizer": "sgd-momentum"},
    {**LORA, "dora": True},
    {**LORA, "modules_to_save": ("embed_tokens", "lm_head")},
    {"freeze": ("embed_tokens", "layers.0")},
    {"train_only": ("lm_head",)},
    {"method": "dpo"},
    {"method": "dpo", "reference": False},
    {"method": "dpo", **LORA},
    {"method": "grpo", "checkpointing": "every"},
    {"loss": "chunked", "optimizer": "sgd"},
    {"loss": "fused", "optimizer": "sgd"},
    {"loss": "fused", **LORA},
    {"lengths": (32, 128, 64), "gradient_accumulation_steps": 2},
)


@pytest.mark.parametrize("changes", REAL, ids=lambda changes: ",".join(map(str, changes)))
def test_a_plan_is_what_real_steps_take(base, changes):
    recipe = replace(base, **changes)
    measured = measure_recipe(recipe, torch.device("cpu")).peak_bytes
    assert plan(recipe).peak_allocated_bytes == pytest.approx(measured, rel=0.05)


def test_what_optimizers_keep(base):
    def state(**changes):
        return simulate(replace(base, **changes)).state_bytes

    def on_the_host(**changes):
        return simulate(replace(base, **changes)).host_bytes

    rest = PARAMETERS - 4 * IN_A_BLOCK
    assert state(optimizer="lion") == 4 * PARAMETERS
    assert state(optimizer="lion-8bit") == pytest.approx((1 + 4 / 256) * PARAMETERS, rel=0.01)
    assert on_the_host(optimizer="adamw-32bit-paged") == 8 * PARAMETERS
    assert on_the_host(optimizer="lion-8bit-paged") == state(optimizer="lion-8bit")
    assert state(optimizer="muon") == 4 * 4 * IN_A_BLOCK + 8 * rest
    # GaLore keeps a projection of the shorter side, and two moments of what is left.
    sides = [(128, 128)] * 4 + [(384, 128)] * 3
    galore = sum(16 * (min(side) + 2 * max(side)) for side in sides)
    assert state(optimizer="galore", galore_rank=16) == 4 * 4 * galore + 8 * rest
    assert state(precision="bf16", master_weights=True) == 12 * PARAMETERS
    assert state(precision="bf16", master_weights=True, optimizer="sgd") == 4 * PARAMETERS


def test_deepspeeds_buffer_lies_beside_the_gradients(base):
    """ZeRO-1 and ZeRO-2 with FP32 masters are DeepSpeed's: 5e8 elements while a backward pass runs, in 16 bits."""

    def peak(stage, phase, **changes):
        recipe = replace(base, precision="bf16", parallel=ParallelConfig(shard=8, zero=stage), **changes)
        return plan(recipe).peaks[phase][0]

    for stage in ("zero1", "zero2"):
        changes = {"optimizer": "sgd", "gradient_accumulation_steps": 2}
        plain, masters = peak(stage, "backward", **changes), peak(stage, "backward", **changes, master_weights=True)
        own = 4 * PARAMETERS // 8  # the masters' part of this rank
        assert masters - plain == pytest.approx(1e9 + own, rel=0.02)
        assert peak(stage, "optimizer step", **changes, master_weights=True) < 1e9
    masters = peak("zero3", "backward", optimizer="sgd", master_weights=True)
    assert masters < 1e9


@pytest.mark.parametrize("model_type", ["gemma2", "gemma3_text", "phi3", "qwen3"])
def test_a_fused_loss_goes_with_every_causal_model(model_type, tmp_path):
    path = tmp_path / "config.json"
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 32000, "pad_token_id": 0}
    path.write_text(json.dumps({"model_type": model_type} | sizes))
    recipe = Recipe(str(path), seq=1024)
    logits = 4 * 1024 * 32000
    saved = plan(recipe).peak_allocated_bytes - plan(replace(recipe, loss="fused")).peak_allocated_bytes
    assert saved > 1.5 * logits


def test_falcons_own_linear_layers_are_quantized(tmp_path):
    path = tmp_path / "config.json"
    sizes = {"model_type": "falcon", "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4}
    path.write_text(json.dumps(sizes | {"vocab_size": 512}))
    recipe = Recipe(str(path), seq=64, lora_rank=4, quantize="nf4")
    held = plan(recipe).at_peak["parameters"]
    matrices = 4 * (9 * 128 * 128 + 128 * (128 + 2 * 32))
    adapters = 4 * 4 * 4 * (128 + 128 + 2 * 32)
    assert held == pytest.approx(matrices * (1 / 2 + 4 / 64) + 2 * 512 * 128 + adapters, rel=0.1)


def test_a_classifier_that_would_count_its_labels_is_planned(tmp_path):
    path = tmp_path / "config.json"
    sizes = {"model_type": "deberta-v2", "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 256, "vocab_size": 512, "relative_attention": True, "position_buckets": 32}
    path.write_text(json.dumps(sizes | {"architectures": ["DebertaV2ForSequenceClassification"]}))
    assert plan(Recipe(str(path), seq=64)).peak_allocated_bytes > 0


def test_galores_moments_are_adams_at_full_rank(base):
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()) for _ in range(2)))
    assert {tuple(p.shape) for p in model.parameters() if id(p) in matrices_of(model)} == {(8, 8)}
    full = simulate(replace(base, optimizer="galore", galore_rank=128)).state_bytes
    adam = simulate(replace(base, optimizer="adamw")).state_bytes
    assert full - adam == 4 * 4 * 7 * 128 * 128  # the projections


def test_16_bits_are_16_bits(base):
    plans = [plan(replace(base, precision=precision)) for precision in ("bf16", "fp16")]
    assert plans[0].peak_allocated_bytes == plans[1].peak_allocated_bytes
    assert plan(replace(base, precision="fp16"), "v100-32gb").roofline_seconds["v100-32gb"] > 0
    assert plans[1].floor_bytes == 8 * PARAMETERS


def test_a_reference_is_a_copy_unless_there_are_adapters(base):
    def parameters(**changes):
        return plan(replace(base, optimizer="sgd", method="dpo", **changes)).at_peak["parameters"]

    alone = parameters(reference=False)
    assert parameters() - alone == pytest.approx(4 * PARAMETERS, rel=0.01)
    assert parameters(**LORA) == parameters(**LORA, reference=False)
    sharded = ParallelConfig(shard=4)
    in_parts = parameters(parallel=sharded) - parameters(parallel=sharded, reference=False)
    assert in_parts == pytest.approx(PARAMETERS, rel=0.05)
    plain, pair = plan(base), plan(replace(base, method="dpo", reference=False))
    assert pair.flops == pytest.approx(2 * plain.flops, rel=0.02)
    assert plan(replace(base, method="dpo")).flops == pytest.approx(pair.flops * 4 / 3, rel=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_probabilities_have_the_gradient_of_a_softmax(dtype):
    logits = torch.randn(3, 5, 11, dtype=dtype).requires_grad_()
    targets = torch.randint(11, (3, 5))
    weights = torch.randn(3, 5)

    def gradient(chosen):
        return torch.autograd.grad((chosen * weights).sum(), logits)[0]

    plain = logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    torch.testing.assert_close(log_probabilities(logits, targets), plain)
    torch.testing.assert_close(gradient(log_probabilities(logits, targets)), gradient(plain))


def test_a_fused_loss_makes_its_gradients_going_forward():
    hidden, weight = torch.randn(64, 16, requires_grad=True), torch.randn(40, 16, requires_grad=True)
    FusedLoss.apply(hidden, weight, torch.zeros(64, dtype=torch.long)).backward()
    assert hidden.grad.shape == hidden.shape
    assert weight.grad.shape == weight.shape


def test_a_quantized_base_is_split_as_it_is_packed(base):
    recipe = replace(base, precision="bf16", quantize="nf4", **LORA, checkpointing="every", parallel=ParallelConfig())
    one, eight = (
        simulate(replace(recipe, parallel=ParallelConfig(shard=ranks))).blocks for ranks in (1, 8)
    )  # a parameter lives from the first event on
    held = [sum(b.nbytes for b in blocks if b.category == "parameters" and b.end is None) for blocks in (one, eight)]
    scales = 4 * IN_A_BLOCK // 64 * 4  # buffers, which each rank keeps
    assert (held[0] - scales) / (held[1] - scales) == pytest.approx(8, rel=0.1)
    offloaded = plan(replace(recipe, parallel=ParallelConfig(shard=8), offload="all"))
    assert offloaded.at_peak["parameters"] < 1.2 * scales + 2 * TABLE


@pytest.mark.parametrize("optimizer", ["adamw-8bit", "adamw-8bit-paged", "adamw-32bit-paged", "adafactor", "lion"])
def test_other_optimizers_update_shards(base, optimizer):
    recipe = replace(base, optimizer=optimizer)
    one, four = (simulate(replace(recipe, parallel=ParallelConfig(shard=ranks))) for ranks in (1, 4))
    if optimizer != "adafactor":  # whose vectors are hardly anything
        assert four.state_bytes + four.host_bytes == pytest.approx((one.state_bytes + one.host_bytes) / 4, rel=0.05)
    assert four.state_bytes < 0.5 * one.state_bytes or "paged" in optimizer


def test_losses_that_do_not_hold_all_logits(base):
    recipe = replace(base, optimizer="sgd", micro_batch_size=32)
    logits = 32 * 128 * 2000 * 4
    full, chunked, fused = (plan(replace(recipe, loss=loss)) for loss in ("full", "chunked", "fused"))
    assert full.peak_allocated_bytes - chunked.peak_allocated_bytes > 0.8 * logits
    assert full.peak_allocated_bytes - fused.peak_allocated_bytes > 2 * logits
    assert full.parameters == fused.parameters == chunked.parameters
    assert fused.flops == pytest.approx(full.flops, rel=0.01)
    assert chunked.flops == full.flops


def test_documents_of_a_packed_sequence_do_not_meet(base):
    recipe = replace(base, precision="bf16", seq=1024, micro_batch_size=2, optimizer="sgd")
    whole, packed = plan(recipe), plan(replace(recipe, packed=64))
    assert packed.peak_allocated_bytes == pytest.approx(whole.peak_allocated_bytes, rel=0.01)
    attention = (
        4 * 2 * 1024 * 14 * 128
    )  # layers, tokens, and FLOPs (4 forward, 10 backward) for each that one attends to
    assert whole.flops - packed.flops == pytest.approx(attention * (1024 - 64), rel=0.05)
    with pytest.raises(RecipeError, match="multiple"):
        replace(recipe, packed=60)


def test_lengths_that_vary_cost_reserved_memory_and_not_allocated(base):
    recipe = replace(base, precision="bf16", micro_batch_size=8, optimizer="sgd", seq=1024)
    varied = replace(recipe, lengths=(700, 420, 1024, 610, 880, 333))
    one, many = (replay(simulate(each).blocks, False) for each in (recipe, varied))
    assert many.peak_allocated == pytest.approx(one.peak_allocated, rel=0.01)
    assert many.peak_reserved > 1.02 * one.peak_reserved
    grown = replay(simulate(varied).blocks, True)
    assert grown.peak_reserved < many.peak_reserved  # expandable segments are for this
    assert plan(varied).flops == pytest.approx(plan(replace(recipe, seq=661)).flops, rel=0.1)
    assert plan(varied, "h100-80gb").forecasts["h100-80gb"].unit == "tokens"


def test_dropout_of_the_config_can_be_changed():
    gpt = Recipe(GPT2, precision="bf16", micro_batch_size=16, seq=256, optimizer="sgd")
    assert plan(replace(gpt, dropout=0.0)).peak_allocated_bytes < plan(gpt).peak_allocated_bytes
    assert plan(replace(gpt, dropout=0.1)).peak_allocated_bytes == plan(gpt).peak_allocated_bytes


def test_channels_last_has_the_same_bytes():
    net = Recipe("resnet-50", precision="fp32", micro_batch_size=2, image_size=64, optimizer="sgd")
    assert plan(replace(net, channels_last=True)).peak_allocated_bytes == pytest.approx(
        plan(net).peak_allocated_bytes, rel=0.02
    )


REFUSED = (
    ({"optimizer": "muon", "parallel": ParallelConfig(shard=2)}, "whole matrices"),
    ({"optimizer": "lion", "optimizer_impl": "fused"}, "no fused"),
    ({"master_weights": True}, "16-bit weights"),
    ({"dora": True}, "without adapters"),
    ({"modules_to_save": ("lm_head",)}, "without adapters"),
    ({"train_only": ("lm_head",), **LORA}, "modules_to_save"),
    ({"method": "dpo", "loss": "fused"}, "all logits"),
    ({"reference": False}, "Only dpo and grpo"),
    ({"lengths": (64, 0)}, "at least 1"),
    ({"dropout": 1.0}, "less than 1"),
    ({"freeze": ("nowhere",)}, "no module called nowhere"),
    ({"freeze": ("model", "lm_head")}, "Nothing is left"),
    ({"modules_to_save": ("head",), **LORA}, "no module called head"),
    ({"channels_last": True}, "for images"),
)


@pytest.mark.parametrize(("changes", "words"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_cannot_work_is_refused(base, changes, words):
    with pytest.raises(RecipeError, match=words):
        plan(replace(base, **changes))


def test_ranks_that_split_a_model_name_what_they_do_not_do(base):
    arch = arch_of(base.model)
    split = replace(base, precision="bf16-amp", optimizer_impl="fused", parallel=ParallelConfig(tensor=2))
    assert layout_of(split, arch).tensor == 2
    for changes in ({"loss": "fused"}, {"method": "dpo"}, {"freeze": ("lm_head",)}, {"dropout": 0.1}, {"packed": 64}):
        (name,) = changes
        with pytest.raises(RecipeError, match=name):
            layout_of(replace(split, **changes), arch)
    with pytest.raises(RecipeError, match="precision fp16"):
        layout_of(replace(split, precision="fp16"), arch)


def test_a_recomputed_block_on_an_eight_bit_base_keeps_its_input_alone():
    options = {"lora_rank": 8, "lora_targets": ("c_attn",), "micro_batch_size": 4, "seq": 128}
    kept = {}
    for base in ("int8", "nf4"):
        for checkpointing in ("none", "every"):
            recipe = Recipe("gpt2", quantize=base, checkpointing=checkpointing, **options)
            kept[base, checkpointing] = plan(recipe).at_peak
    in_blocks = {key: at["activations"] + at["temporaries"] for key, at in kept.items()}
    assert in_blocks["int8", "none"] > 1.02 * in_blocks["nf4", "none"]  # inputs of all layers
    assert in_blocks["int8", "every"] < 1.01 * in_blocks["nf4", "every"]
