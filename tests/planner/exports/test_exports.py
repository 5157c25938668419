"""Exports: nothing of a layout is lost in silence, and what is written says what the layout says."""

import ast
import json
from dataclasses import fields, replace

from helpers.planner.config import ENGINES, PRECISIONS, ZEROS, RecipeError
from helpers.planner.exports import EXPORTS, FILES, command, export
from helpers.planner.layout.layout import Layout

import pytest

from .cases import BASES, DEEPSEEK, GPT_2, LLAMA_2, LLAMA_8B, LLAMA_70B, MEGATRON, MIXTURE

MODEL = "llama-3.1-8b"

# For each field: what must be set beside it for it to matter, and values to change it to.
STAGES = {"pipeline": 2}
CHANGES = {
    "arch": ({}, [LLAMA_70B, LLAMA_2, GPT_2, MIXTURE, DEEPSEEK]),
    "tensor": ({}, [2]),
    "sequence_parallel": ({"tensor": 2}, [False]),
    "tensor_overlap": ({"tensor": 2}, [True]),
    "pipeline": ({}, [2]),
    "schedule": (STAGES, ["gpipe", "zero-bubble"]),
    "virtual_stages": (STAGES | {"schedule": "interleaved"}, [2, 3]),
    "context": ({}, [2]),
    "context_method": ({"context": 2}, ["all-to-all"]),
    "expert": ({"arch": MIXTURE}, [2]),
    "shard": ({}, [2, 1]),
    "replicate": ({}, [2]),
    "zero": ({}, list(ZEROS)),
    "reshard_after_forward": ({}, [False]),
    "accumulate_whole": ({}, [True]),
    "plain_ends": ({"tensor": 2}, [True]),
    "micro_batch_size": ({}, [2]),
    "micro_batches": ({}, [8]),
    "seq": ({}, [8192]),
    "precision": ({}, list(PRECISIONS)),
    "recompute": ({}, ["selective", "full"]),
    "recompute_every": ({"recompute": "full"}, [2, 3, 4]),
    "attention": ({}, ["eager"]),
    "compile": ({}, [True, False]),
    "cuda_graphs": ({}, [True]),
    "engine": ({}, list(ENGINES)),
    "lora_rank": ({}, [8]),
    "lora_targets": ({"lora_rank": 8}, ["all"]),
    "lora_dropout": ({"lora_rank": 8}, [0.1]),
    "fp8_params": ({"lora_rank": 8, "precision": "fp8"}, [True]),
}
# What rows of published runs alone can say, and what follows from the engine: no option of `plan` sets these.
OF_ROWS = {"target_seq", "dropout", "wgrad_fusion", "attention_mask", "deterministic", "transformer_engine"}
OF_ROWS |= {"data_overlap", "own_modules", "narrow_gradients", "loss", "deferred_logits", "micro_batch_group"}
OF_ROWS |= {"deepspeed", "packed", "ends_as_blocks", "dispatcher", "expert_tensor", "grouped_experts"}
OF_ROWS |= {"large_workspace", "head_dummy", "buffer_passes", "stage_sizes", "softmax_fusion", "four_bits"}
SAME_HABITS = {"torchtitan", "pytorch"}  # planned alike


def text_or_refusal(layout: Layout, engine: str) -> tuple[str | None, str | None]:
    try:
        return export(layout, MODEL, engine), None
    except RecipeError as error:
        return None, str(error)


def changed(base: Layout, **values) -> Layout | None:
    try:
        return replace(base, **values)
    except RecipeError:
        return None  # no layout at all


def test_every_field_is_changed_by_the_next_test():
    assert set(CHANGES) | OF_ROWS == {field.name for field in fields(Layout)}


@pytest.mark.parametrize("field", CHANGES)
def test_what_a_field_belongs_to_exists_for_some_engine(field):
    assert any(changed(BASES[engine], **CHANGES[field][0]) for engine in EXPORTS)


@pytest.mark.parametrize("engine", EXPORTS)
def test_each_engine_expresses_its_base(engine):
    text, refusal = text_or_refusal(BASES[engine], engine)
    assert refusal is None
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    assert MODEL in text or engine == "torchrun"


@pytest.mark.parametrize("engine", EXPORTS)
@pytest.mark.parametrize("field", CHANGES)
def test_a_changed_field_shows_or_is_refused(engine, field):
    beside, values = CHANGES[field]
    base = changed(BASES[engine], **beside)
    if base is None:
        return  # no layout of this engine has what the field belongs to
    before, refusal = text_or_refusal(base, engine)
    if before is None:  # what the field belongs to is refused, in words
        assert_one_clear_line(refusal)
        return
    for value in values:
        other = changed(base, **{field: value})
        if other is None or other == base or {base.engine, other.engine} == SAME_HABITS:
            continue
        after, refusal = text_or_refusal(other, engine)
        if after is None:
            assert_one_clear_line(refusal)
        else:
            assert told(after, engine) != told(before, engine), f"{engine}: {field} {value!r} changes nothing"


def told(text: str, engine: str) -> str:
    """Return what the engine is told: a program without its first line, arguments without their comments."""
    lines = text.splitlines()[1:] if FILES[engine].endswith(".py") else text.splitlines()
    return "\n".join(line for line in lines if not line.startswith("# "))


def assert_one_clear_line(message: str | None) -> None:
    assert message
    assert "\n" not in message
    assert 20 < len(message) < 220
    assert message.endswith(".")


@pytest.mark.parametrize(
    ("engine", "values", "complaint"),
    [
        ("torchtitan", {"context": 2}, "neither in a ring nor all-to-all"),
        ("torchtitan", {"zero": "zero1"}, "torchtitan has no zero1"),
        ("torchtitan", {"zero": "zero2"}, "torchtitan has no zero2"),
        ("torchtitan", {"precision": "fp16-amp"}, "bf16-amp instead of fp16-amp"),
        ("torchtitan", {"recompute": "full", "recompute_every": 2}, "not one in 2"),
        ("torchtitan", {"arch": GPT_2, "seq": 1024}, "no model of these sizes"),
        ("torchtitan", {"arch": MIXTURE, "precision": "fp8"}, "MXFP8"),
        ("torchtitan", {"arch": MIXTURE, "shard": 2, "replicate": 4, "expert": 4}, "expert 4 does not divide"),
        ("torchtitan", {"arch": replace(LLAMA_2, tied=True), "pipeline": 2}, "cannot tie weights"),
        ("torchtitan", {"zero": "none", "reshard_after_forward": False}, "needs zero3"),
        ("torchtitan", {"attention": "eager"}, "attention is fused"),
        ("torchtitan", MEGATRON, "planned for --engine megatron;"),
        ("megatron", {"pipeline": 2, "schedule": "gpipe"}, "has no gpipe schedule"),
        ("megatron", {"pipeline": 2, "schedule": "zero-bubble"}, "has no zero-bubble schedule"),
        ("megatron", {"zero": "zero2"}, "Megatron-FSDP"),
        ("megatron", {"precision": "bf16"}, "bf16-amp instead of bf16"),
        ("megatron", {"compile": False}, "always fuses"),
        ("megatron", {"recompute": "full", "recompute_every": 2}, "not one in 2"),
        ("megatron", {"reshard_after_forward": False}, "needs zero3"),
        ("megatron", {"engine": "torchtitan"}, "plan it with --engine megatron"),
        ("megatron-bridge", {"arch": DEEPSEEK}, "does not support latent attention"),
        ("megatron-bridge", {"attention": "eager"}, "use attention fused, or --export megatron"),
        ("deepspeed", {"tensor": 2, "pipeline": 2}, "not tensor 2, pipeline 2"),
        ("deepspeed", {"context": 2}, "not context 2"),
        ("deepspeed", {"arch": MIXTURE, "expert": 4}, "not expert 4"),
        ("deepspeed", {"replicate": 2}, "set shard to all data ranks"),
        ("deepspeed", {"replicate": 2, "shard": 1}, "use zero none"),
        ("deepspeed", {"reshard_after_forward": False}, "frees gathered parameters"),
        ("deepspeed", {"precision": "fp8"}, "no fp8"),
        ("deepspeed", {"precision": "bf16"}, "bf16-amp instead of bf16"),
        ("torchrun", {"tensor": 2}, "not tensor 2"),
        ("torchrun", {"replicate": 2}, "over all ranks or none"),
        ("torchrun", {"zero": "zero1"}, "does not support zero1"),
        ("torchrun", {"recompute": "selective"}, "full blocks"),
        ("torchrun", {"recompute": "full", "recompute_every": 4}, "not one in 4"),
        ("torchrun", {"attention": "eager"}, "planned with dropout"),
        ("torchrun", {"precision": "fp8"}, "does not support fp8"),
        ("torchrun", {"compile": True}, "use --no-compile"),
        ("torchrun", {"arch": LLAMA_2}, "differ in size"),
        ("torchrun", {"arch": MIXTURE}, "mixture of experts"),
        ("torchrun", {"zero": "none", "reshard_after_forward": False}, "needs zero3"),
        ("torchrun", MEGATRON, "planned for --engine megatron;"),
    ],
)
def test_what_cannot_be_expressed_is_refused(engine, values, complaint):
    _, refusal = text_or_refusal(replace(BASES[engine], **values), engine)
    assert_one_clear_line(refusal)
    assert complaint in refusal


def test_an_unknown_engine_is_refused():
    with pytest.raises(RecipeError, match="choose one of torchtitan, megatron"):
        export(BASES["torchtitan"], MODEL, "colossalai")


def test_each_command_names_the_file():
    for engine in EXPORTS:
        assert FILES[engine].removesuffix(".py") in command(engine)


# -- what is written


def keywords(text: str) -> dict[str, object]:
    """Return the keyword arguments with constant values anywhere in a program."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return {k.arg: k.value.value for c in calls for k in c.keywords if isinstance(k.value, ast.Constant)}


def test_torchtitan_is_told_the_layout():
    layout = Layout(
        LLAMA_70B,
        tensor=8,
        pipeline=4,
        schedule="interleaved",
        virtual_stages=3,
        shard=2,
        replicate=2,
        micro_batch_size=2,
        micro_batches=8,
        seq=8192,
        recompute="full",
    )
    text = export(layout, "llama-3.1-70b", "torchtitan")
    told = keywords(text)
    assert told["local_batch_size"] == 16  # the pipeline's micro-batches together
    assert told["global_batch_size"] == 64
    assert told["pipeline_parallel_microbatch_size"] == 2
    assert (told["data_parallel_shard_degree"], told["data_parallel_replicate_degree"]) == (2, 2)
    assert (told["tensor_parallel_degree"], told["pipeline_parallel_degree"]) == (8, 4)
    assert told["pipeline_parallel_schedule"] == "Interleaved1F1B"
    assert told["fsdp_reshard_after_forward"] == "always"
    assert "activation_checkpoint=FullAC.Config()" in text
    module: dict = {}
    start, end = text.index("STAGES"), text.index("def planned")
    exec(text[start:end], module)
    stages = module["modules"]()
    assert stages[0] == ["tok_embeddings", *(f"layers.{block}" for block in range(7))]
    assert stages[-1] == [*(f"layers.{block}" for block in range(74, 80)), "norm", "lm_head"]
    assert [block for stage in stages for block in stage if "." in block] == [f"layers.{i}" for i in range(80)]


def test_without_a_pipeline_torchtitan_accumulates():
    told = keywords(export(Layout(LLAMA_8B, shard=4, micro_batch_size=2, micro_batches=8), MODEL, "torchtitan"))
    assert (told["local_batch_size"], told["global_batch_size"]) == (2, 64)
    assert "pipeline_parallel_degree" not in told


def test_replicas_without_sharding_are_replicas():
    told = keywords(export(Layout(LLAMA_8B, shard=4, replicate=2, zero="none"), MODEL, "torchtitan"))
    assert (told["data_parallel_shard_degree"], told["data_parallel_replicate_degree"]) == (1, 8)


def flags(text: str) -> dict[str, str]:
    words = [line.partition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {flag: value for flag, _, value in words}


def test_megatron_is_told_the_layout():
    layout = Layout(
        LLAMA_70B,
        tensor=8,
        pipeline=4,
        schedule="interleaved",
        virtual_stages=2,
        context=2,
        context_method="all-to-all",
        shard=2,
        replicate=2,
        micro_batches=8,
        seq=8192,
        recompute="full",
        **MEGATRON | {"zero": "zero1"},
    )
    told = flags(export(replace(layout, context_method="ring"), "llama-3.1-70b", "megatron"))
    assert told["--tensor-model-parallel-size"] == "8"
    assert told["--pipeline-model-parallel-size"] == "4"
    assert told["--num-virtual-stages-per-pipeline-rank"] == "2"
    assert told["--context-parallel-size"] == "2"
    assert told["--cp-comm-type"] == "p2p"
    assert told["--global-batch-size"] == "32"
    assert told["--num-distributed-optimizer-instances"] == "2"
    assert told["--group-query-attention"] == "--num-query-groups 8"
    assert {"--sequence-parallel", "--bf16", "--swiglu", "--use-distributed-optimizer"} <= set(told)
    assert flags(export(replace(layout, tensor=4), "llama-3.1-70b", "megatron"))["--cp-comm-type"] == "a2a"


def test_stages_of_unequal_length_are_spelt_out():
    layout = Layout(LLAMA_8B, pipeline=3, micro_batches=3, **MEGATRON)
    assert flags(export(layout, MODEL, "megatron"))["--pipeline-model-parallel-layout"] == "Et*11|t*11|t*10L"
    bridge = export(layout, MODEL, "megatron-bridge").splitlines()
    assert "model.pipeline_model_parallel_layout='Et*11|t*11|t*10L'" in bridge


@pytest.mark.parametrize(
    ("model", "base", "factor"),
    [
        ("llama-3.1-8b", "500000", "8"),
        ("llama-3.2-1b", "500000", "32"),
        ("llama-3-8b", "500000", None),
        ("llama-2-7b", "10000", None),
        ("mixtral-8x7b", "1000000", None),
    ],
)
def test_megatron_is_told_the_rotations(model, base, factor):
    told = flags(export(BASES["megatron"], model, "megatron"))
    assert told["--rotary-base"] == base
    assert ("--use-rope-scaling" in told) == (factor is not None)
    assert told.get("--rope-scaling-factor") == factor
    assert f"model.rotary_base={base}\n" in export(BASES["megatron-bridge"], model, "megatron-bridge")


def test_rotations_come_from_a_config_or_are_said_to_be_unknown(tmp_path):
    sizes = {"model_type": "llama", "rope_theta": 250000.0}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(sizes | {"rope_scaling": {"rope_type": "llama3", "factor": 4.0}}))
    told = flags(export(BASES["megatron"], str(path), "megatron"))
    assert (told["--rotary-base"], told["--rope-scaling-factor"]) == ("250000", "4")
    path.write_text(json.dumps(sizes | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}))
    text = export(BASES["megatron"], str(path), "megatron")
    assert "--rotary-base" not in text
    assert "rotary embeddings are not known here" in text
    assert "rotary" not in export(replace(BASES["megatron"], arch=GPT_2, seq=1024), "gpt2", "megatron")


def test_megatrons_comments_name_what_to_replace_and_what_to_set():
    comments = [line for line in export(BASES["megatron"], MODEL, "megatron").splitlines() if line.startswith("#")]
    assert any(all(flag in line for flag in ("--lr", "--train-iters", "--mock-data")) for line in comments)
    assert not any("CUDA_DEVICE_MAX_CONNECTIONS" in line for line in comments)
    for ranks in ({"tensor": 2}, {"context": 2}):
        for engine in ("megatron", "megatron-bridge"):
            assert "set CUDA_DEVICE_MAX_CONNECTIONS=1" in export(replace(BASES[engine], **ranks), MODEL, engine)


def test_experts_and_latent_attention_are_told():
    told = flags(export(Layout(DEEPSEEK, shard=8, expert=8, **MEGATRON), "deepseek", "megatron"))
    assert told["--expert-model-parallel-size"] == "8"
    assert told["--moe-layer-freq"] == "([0]*1+[1]*26)"
    assert told["--moe-shared-expert-intermediate-size"] == "2816"
    assert (told["--qk-head-dim"], told["--qk-pos-emb-head-dim"], told["--v-head-dim"]) == ("128", "64", "128")


def test_the_bridge_is_told_the_same():
    layout = Layout(MIXTURE, shard=4, tensor=2, expert=8, seq=2048, micro_batches=2, **MEGATRON)
    text = export(layout, "qwen", "megatron-bridge")
    told = dict(line.split("=", 1) for line in text.splitlines() if not line.startswith("#"))
    assert told["model.tensor_model_parallel_size"] == "2"
    assert told["model.sequence_parallel"] == "true"
    assert told["model.expert_model_parallel_size"] == "8"
    assert told["model.moe_layer_freq"] == "[" + ",".join("1" * 48) + "]"
    assert told["model.seq_length"] == told["dataset.seq_length"] == "2048"
    assert told["train.global_batch_size"] == "8"
    assert told["mixed_precision"] == "bf16_mixed"
    assert not any(" " in line for line in told.values())  # a shell would split there


@pytest.mark.parametrize(("zero", "stage"), [("none", 0), ("zero1", 1), ("zero2", 2), ("zero3", 3)])
def test_deepspeed_is_told_the_stage_and_the_batch(zero, stage):
    told = json.loads(export(Layout(LLAMA_8B, shard=4, micro_batches=4, zero=zero), MODEL, "deepspeed"))
    assert told["zero_optimization"]["stage"] == stage
    assert told["train_batch_size"] == 16
    assert told["torch_autocast"] == {"enabled": True, "dtype": "bfloat16"}
    assert told["for_your_script"]["seq"] == 4096


def test_deepspeed_keeps_masters_where_they_were_planned():
    told = json.loads(export(Layout(LLAMA_8B, shard=4, **MEGATRON), MODEL, "deepspeed"))
    assert told["bf16"] == {"enabled": True}
    assert "torch_autocast" not in told


def test_our_script_is_that_of_the_recipe():
    text = export(replace(BASES["torchrun"], recompute="full", recompute_every=2), MODEL, "torchrun")
    ast.parse(text)
    assert "fully_shard" in text
    assert "[::2]" in text
    kept = export(replace(BASES["torchrun"], reshard_after_forward=False), MODEL, "torchrun")
    assert "reshard_after_forward=False" in kept
    assert "DistributedDataParallel" in export(replace(BASES["torchrun"], zero="none"), MODEL, "torchrun")
