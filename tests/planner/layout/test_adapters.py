"""LoRA on ranks that split a model: what is trained, kept and sent."""

from dataclasses import replace

from helpers.planner.catalog.archs import arch_of
from helpers.planner.catalog.clusters import find_cluster
from helpers.planner.config import ParallelConfig, RecipeError, TrainingConfig
from helpers.planner.layout.arch import Arch
from helpers.planner.layout.layout import Layout, layout_of
from helpers.planner.layout.layout_plan import plan_layout
from helpers.planner.layout.long_stage import run_long_stage
from helpers.planner.layout.stage_run import StageKind
from helpers.planner.rows.line import read_line

import pytest

ARCH = Arch(layers=4, hidden=256, heads=8, kv_heads=4, head_dim=32, ffn=512, vocab=1024)
WHOLE = Layout(
    ARCH, tensor=2, shard=2, micro_batches=2, seq=512, engine="megatron", zero="zero1", transformer_engine=True
)
LORA = replace(WHOLE, lora_rank=8)
H100 = find_cluster("dgx-h100")


def trained(layout, layers=4):
    return run_long_stage(layout, StageKind(layers, 0, True, True)).parameters


def weights(layout):
    return plan_layout(layout, H100).worst.peak["parameters"]


@pytest.mark.parametrize(
    ("targets", "tensor", "expected"),
    [
        ("attention", 1, 8 * (256 + 256 + 2 * 128) + 8 * (256 + 256)),
        ("attention", 2, 8 * (256 + 128 + 2 * 64) + 8 * (128 + 256)),
        ("all", 1, 8 * (256 + 256 + 2 * 128) + 8 * (256 + 256) + 8 * (256 + 2 * 512) + 8 * (512 + 256)),
    ],
)
def test_only_adapters_are_trained(targets, tensor, expected):
    layout = replace(LORA, tensor=tensor, shard=4 // tensor, lora_targets=targets)
    assert trained(layout) == 4 * expected


def test_weights_in_eight_bits_take_half_of_those_in_sixteen():
    eight = replace(LORA, precision="fp8", fp8_params=True)
    blocks = 4 * ARCH.layer_parameters(0) // 2  # of two tensor ranks
    assert weights(LORA) - weights(eight) == pytest.approx(blocks, rel=0.01)


def test_what_is_not_trained_keeps_no_inputs_and_no_gradients():
    whole, lora = (plan_layout(each, H100).worst.peak for each in (WHOLE, LORA))
    assert lora["activations"] < 0.8 * whole["activations"]
    assert lora["gradients"] < 0.05 * whole["gradients"]
    assert lora["optimizer state"] < 0.05 * whole["optimizer state"]


def test_a_step_computes_two_matmuls_of_three():
    whole, lora = (plan_layout(replace(each, tensor=1, shard=4), H100) for each in (WHOLE, LORA))
    head = 2 * ARCH.hidden * ARCH.vocab * 512 * 2
    assert lora.flops < 0.75 * whole.flops
    assert lora.layout.flops_per_token == pytest.approx(lora.flops / (512 * 2), rel=0.06)
    assert lora.flops > 2 * head


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"engine": "torchtitan", "zero": "zero3"}, "engine megatron"),
        ({"lora_rank": 0, "fp8_params": True, "precision": "fp8"}, "fp8_params needs adapters"),
        ({"fp8_params": True}, "precision fp8"),
        ({"lora_targets": "head"}, "lora_targets"),
    ],
)
def test_what_cannot_be_combined_is_refused(changes, word):
    with pytest.raises(RecipeError, match=word):
        replace(LORA, **changes)


def test_a_line_names_its_adapters():
    line = {"framework": "nemo", "model": "llama-2-70b", "gpu": "mi300x", "gpus": 8, "lora_rank": 16}
    layout = read_line(line).layout
    assert (layout.lora_rank, layout.lora_targets, layout.fp8_params) == (16, "attention", True)
    everywhere = read_line(line | {"lora_targets": ["linear_qkv", "linear_fc1"], "precision": "bf16-amp"}).layout
    assert (everywhere.lora_targets, everywhere.fp8_params) == ("all", False)
    for wrong in ({"lora_rank": 1.5}, {"lora_targets": ["lm_head"]}, {"lora_targets": 3}, {"lora_dropout": 1}):
        with pytest.raises(RecipeError, match=next(iter(wrong))):
            read_line(line | wrong)


@pytest.mark.parametrize(
    ("said", "meant"),
    [((), "attention"), ("q_proj,v_proj", "attention"), ("all-linear", "all"), ("q_proj,c_fc", "all")],
)
def test_the_layers_of_a_command_are_those_of_a_layout(said, meant):
    names = tuple(said.split(",")) if said else ()
    assert layout_of(_asked(names), arch_of("llama-2-7b")).lora_targets == meant


def test_layers_that_a_block_does_not_have_are_refused():
    with pytest.raises(RecipeError, match="lm_head"):
        layout_of(_asked(("lm_head",)), arch_of("llama-2-7b"))


def _asked(names):
    options = {"engine": "megatron", "optimizer_impl": "fused", "lora_rank": 8, "lora_targets": names}
    return TrainingConfig("llama-2-7b", parallel=ParallelConfig(zero="zero1"), **options)


def test_more_adapters_take_more_memory():
    few, all_ = (
        plan_layout(replace(LORA, tensor=1, shard=4, lora_targets=each), H100) for each in ("attention", "all")
    )
    for category in ("activations", "gradients", "optimizer state"):
        assert all_.worst.peak[category] > few.worst.peak[category], category
