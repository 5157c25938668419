"""`plan --from FILE`: what others train with is read, and what is not understood is named."""

import json
import random
import re
from dataclasses import asdict, replace
from importlib import import_module

from helpers.__main__ import main
from helpers.core.files import ROOT
from helpers.core.units import GiB
from helpers.planner import from_file, plan
from helpers.planner.catalog.archs import arch_of
from helpers.planner.catalog.clusters import find_cluster
from helpers.planner.changes import (
    Change,
    Outcome,
    best_changes,
    of_config,
    of_layout,
    outcome_of_config,
    outcome_of_recipe,
)
from helpers.planner.config import ParallelConfig, RecipeError, TrainingConfig
from helpers.planner.described import described
from helpers.planner.exports import FILES, export
from helpers.planner.importers import read_file
from helpers.planner.importers.hugging_face import read_axolotl, read_training_arguments
from helpers.planner.importers.names import catalog_name
from helpers.planner.layout.layout import layout_of
from helpers.planner.rows.answers import answer as rows_answer
from helpers.planner.rows.line import read_line

import pytest

from .exports.cases import BASES, DEEPSEEK, GPT_2, LLAMA_2, LLAMA_8B, LLAMA_70B, MIXTURE

MODEL = "llama-3.1-8b"
GPU = "a100-80gb"
VALUES = {
    "arch": [LLAMA_8B, LLAMA_70B, LLAMA_2, GPT_2, MIXTURE, MIXTURE, DEEPSEEK],
    "tensor": [1, 2, 4],
    "pipeline": [1, 2, 4],
    "context": [1, 1, 2],
    "context_method": ["ring", "all-to-all"],
    "expert": [1, 1, 2],
    "shard": [1, 2, 4, 8],
    "replicate": [1, 1, 2],
    "zero": ["none", "zero1", "zero2", "zero3"],
    "schedule": ["1f1b", "interleaved", "gpipe", "zero-bubble"],
    "virtual_stages": [1, 1, 2],
    "micro_batch_size": [1, 2, 3],
    "micro_batches": [1, 4, 8],
    "seq": [512, 1024, 4096],
    "precision": ["fp32", "bf16", "bf16-amp", "fp16-amp", "fp8"],
    "recompute": ["none", "selective", "full"],
    "recompute_every": [1, 1, 2],
    "attention": ["fused", "fused", "eager"],
    "compile": [True, False],
    "sequence_parallel": [True, False],
    "tensor_overlap": [False, True],
    "reshard_after_forward": [True, True, False],
    "cuda_graphs": [False, True],
}


def random_layouts(engine, count, seed=0):
    """Return layouts that an engine can express: each differs from its base in four things."""
    chance, found = random.Random(seed), []
    while len(found) < count:
        values = {name: chance.choice(VALUES[name]) for name in chance.sample(list(VALUES), 5)}
        if engine == "deepspeed":
            values.pop("arch", None)
        try:
            layout = replace(BASES[engine], **values)
            found.append((layout, export(layout, MODEL, engine, GPU)))
        except RecipeError:
            continue
    return found


def plain(layout):
    """Return a layout without what nobody can see of it: whose ranks split what, where nothing is split, and so on."""
    alone = {} if layout.pipeline > 1 else {"schedule": "1f1b", "reshard_after_forward": layout.reshard_after_forward}
    alone |= {
        "packed": False,
        "head_dummy": False,
        "buffer_passes": False,
    }  # which are Megatron's ways, and no arguments
    alone |= {} if layout.tensor > 1 else {"sequence_parallel": True}
    alone |= {} if layout.context > 1 else {"context_method": "ring"}
    alone |= {} if layout.zero != "none" and layout.data > 1 else {"zero": "none", "shard": layout.data, "replicate": 1}
    alone |= {"schedule": "interleaved"} if layout.pipeline > 1 and layout.virtual_stages > 1 else {}
    alone |= {"schedule": "1f1b"} if layout.schedule == "interleaved" and layout.virtual_stages == 1 else {}
    arch = layout.arch
    arch = replace(arch, vocab=-(-arch.vocab // layout.tensor) * layout.tensor)  # ranks have equal parts
    arch = replace(arch, positions=layout.seq if arch.positions else 0)
    if arch.experts and not arch.dense_layers:
        arch = replace(arch, ffn=0)  # no block is so wide
    return replace(layout, arch=arch, **alone)


def told(text):
    """Return a text without its first line, which sums up the layout in words."""
    return text.partition("\n")[2]


def imported(path):
    """Return the layout of a file as `--from` reads it: nothing is added to what the file says."""
    found = read_file(str(path))
    assert not found.unknown
    if found.row is not None:
        assert not {"gpu", "gpus"} & set(found.assumed)
        question = read_line(found.row)
        assert question.cluster.gpu.name == GPU
        return question.layout
    asked = described(found.options | {"optimizer_impl": "fused"})
    return layout_of(asked.config, arch_of(asked.config.model))


@pytest.mark.parametrize("engine", ["torchtitan", "megatron", "megatron-bridge", "deepspeed"])
def test_export_then_import_is_the_identity(tmp_path, engine):
    unlike = set()
    for layout, text in random_layouts(engine, 60):
        path = tmp_path / FILES[engine]
        path.write_text(text, encoding="utf-8")
        again = imported(path)
        assert again.ranks == layout.ranks
        unlike |= {name for name, value in asdict(layout).items() if value != getattr(BASES[engine], name)}
        if engine == "deepspeed" and layout.precision == "fp32":
            again = replace(again, engine=layout.engine)
        assert plain(again) == plain(layout), text
        padded = replace(layout, arch=replace(layout.arch, vocab=again.arch.vocab))
        assert told(export(again, MODEL, engine, GPU)) == told(export(padded, MODEL, engine, GPU))
    assert len(unlike) > 5


@pytest.mark.parametrize("engine", ["torchtitan", "megatron", "megatron-bridge"])
@pytest.mark.parametrize("gpu", ["h100-80gb", "h100-96gb", "b200-192gb"])
def test_the_number_and_the_kind_of_gpus_are_read_back(tmp_path, engine, gpu):
    layout = replace(BASES[engine], tensor=2, shard=32)
    path = tmp_path / FILES[engine]
    path.write_text(export(layout, MODEL, engine, gpu), encoding="utf-8")
    question = read_line(read_file(str(path)).row)
    assert question.cluster.gpu.name == gpu
    assert question.layout.ranks == 64


# -- forms


FILES_AS_PEOPLE_WRITE_THEM = {
    "llama.sh": """#!/bin/bash
#SBATCH --nodes=2
GPUS_PER_NODE=8
TP=${TP:-4}  # in the node
DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes 2"
MODEL_ARGS=(
    --num-layers 32 --hidden-size 4096 --num-attention-heads 32
    --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm
    --position-embedding-type rope --untie-embeddings-and-output-weights --disable-bias-linear
    --seq-length 4096 "--vocab-size 128256"
)
torchrun ${DISTRIBUTED_ARGS} pretrain_gpt.py "${MODEL_ARGS[@]}" --bf16 --use-distributed-optimizer \\
    --tensor-model-parallel-size ${TP} --sequence-parallel --micro-batch-size 2 --global-batch-size=64 --my-own 3
""",
    "test.yaml": """MODEL_ARGS:
  --num-layers: 12
  --hidden-size: 512
  --num-attention-heads: 8
  --micro-batch-size: 4
  --global-batch-size: 32
  --seq-length: 1024
  --bf16: true
  --my-own: 3
""",
    "bert.yaml": """MODEL_ARGS:
  --num-layers: 4
  --hidden-size: 256
  --num-attention-heads: 4
  --micro-batch-size: 4
  --global-batch-size: 32
  --seq-length: 512
  --vocab-file: ${DATA_PATH}/bert-vocab.txt
  --attention-backend: unfused
  --bf16: true
  --my-own: 3
""",
    "t5.yaml": """MODEL_ARGS:
  --encoder-num-layers: 3
  --decoder-num-layers: 3
  --hidden-size: 256
  --num-attention-heads: 4
  --encoder-seq-length: 512
  --decoder-seq-length: 128
  --max-position-embeddings: 512
  --tokenizer-type: BertWordPieceCase
  --vocab-extra-ids: 100
  --micro-batch-size: 2
  --global-batch-size: 16
  --transformer-impl: local
  --bf16: true
  --my-own: 3
""",
    "mtp.yaml": """MODEL_ARGS:
  --num-layers: 5
  --pipeline-model-parallel-size: 2
  --pipeline-model-parallel-layout: Et*3|ttmL
  --mtp-num-layers: 1
  --mtp-loss-scaling-factor: 0.1
  --hidden-size: 256
  --num-attention-heads: 4
  --num-experts: 4
  --moe-layer-freq: ([0]*2+[1]*3)
  --moe-ffn-hidden-size: 512
  --moe-shared-expert-intermediate-size: 256
  --moe-token-dispatcher-type: alltoall
  --disable-bias-linear: true
  --untie-embeddings-and-output-weights: true
  --position-embedding-type: rope
  --seq-length: 512
  --global-batch-size: 16
  --bf16: true
  --my-own: 3
""",
    "nemo.yaml": """trainer: {num_nodes: 2, devices: 8, precision: bf16}
model:
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: ${multiply:4, ${.hidden_size}}
  num_attention_heads: 32
  encoder_seq_length: 2048
  tensor_model_parallel_size: 4
  micro_batch_size: 2
  global_batch_size: 64
  optim: {name: distributed_fused_adam}
  my_own: 3
""",
    "titan.toml": """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 8192
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
my_own = 3
[activation_checkpoint]
mode = "selective"
""",
    "axolotl.yaml": """base_model: NousResearch/Llama-3.2-1B
adapter: qlora
load_in_4bit: true
lora_r: 32
lora_target_linear: true
sequence_len: 2048
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: adamw_bnb_8bit
bf16: auto
gradient_checkpointing: true
wandb_project:
my_own: 3
""",
    "ds_config.json": """{"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}, "my_own": 3,
"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": 4}""",
    "arguments.json": """{"per_device_train_batch_size": 4, "bf16": true, "optim": "adamw_torch_fused",
"gradient_checkpointing": true, "model_name_or_path": "meta-llama/Llama-3.1-8B", "learning_rate": 1e-4, "my_own": 3}""",
    "accelerate.yaml": """compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_processes: 4
fsdp_config: {fsdp_sharding_strategy: FULL_SHARD, fsdp_activation_checkpointing: true}
my_own: 3
""",
}
READ = {
    "llama.sh": {"gpus": 16, "tensor": 4, "micro_batch_size": 2, "global_batch_size": 64, "zero": "zero1"},
    "test.yaml": {"micro_batch_size": 4, "global_batch_size": 32, "seq": 1024, "precision": "bf16-amp"},
    "bert.yaml": {"seq": 512, "attention": "unfused", "attention_mask": False},
    "t5.yaml": {"seq": 512, "target_seq": 128, "transformer_impl": "local", "attention_mask": True},
    "mtp.yaml": {"pipeline": 2, "stage_sizes": [3, 2], "gpus": 8},
    "nemo.yaml": {"gpus": 16, "tensor": 4, "seq": 2048, "zero": "zero1", "precision": "bf16-amp"},
    "titan.toml": {"tensor": 2, "micro_batch_size": 2, "seq": 8192, "checkpointing": "selective"},
    "axolotl.yaml": {"model": "llama-3.2-1b", "quantize": "nf4-dq", "lora_rank": 32, "optimizer": "adamw-8bit"},
    "ds_config.json": {"zero": "zero2", "engine": "megatron", "gradient_accumulation_steps": 4, "micro_batch_size": 1},
    "arguments.json": {"model": "llama-3.1-8b", "precision": "bf16-amp", "optimizer_impl": "fused"},
    "accelerate.yaml": {"gpus": 4, "zero": "zero3", "checkpointing": "full", "precision": "bf16-amp"},
}


@pytest.mark.parametrize("name", READ)
def test_a_file_is_read_and_what_is_not_understood_is_named(tmp_path, name):
    path = tmp_path / name
    path.write_text(FILES_AS_PEOPLE_WRITE_THEM[name], encoding="utf-8")
    found = read_file(str(path))
    assert [each.rpartition(".")[2].replace("_", "-") for each in found.unknown] == ["my-own"]
    values = found.row if found.row is not None else found.options
    assert {key: values[key] for key in READ[name]} == READ[name]


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("bert.yaml", {"layers": 4, "masked": True, "pairs": True, "vocab": 30592, "tied": True}),
        ("t5.yaml", {"layers": 3, "encoder_layers": 3, "masked": False, "vocab": 29184, "positions": 512}),
        ("mtp.yaml", {"layers": 5, "further": 1, "shared_experts": 0.5, "dense_layers": 2, "shared_ffn": 256}),
    ],
)
def test_models_of_megatron_that_are_not_plain_decoders_are_planned(tmp_path, name, sizes):
    path = tmp_path / name
    path.write_text(FILES_AS_PEOPLE_WRITE_THEM[name], encoding="utf-8")
    row = read_file(str(path)).row | {"gpu": "a100"}
    arch = read_line(row).layout.arch
    assert {field: getattr(arch, field) for field in sizes} == sizes
    answer = rows_answer(row)
    assert answer["error"] is None
    assert answer["peak_allocated_bytes"] > 16 * arch.count() // row["pipeline"]
    assert 0 < answer["mfu"] < answer["hfu"] * 1.01 < 1


def test_a_misspelt_key_is_named_with_the_one_that_was_meant():
    found = read_axolotl({"base_model": "llama-2-7b", "sequence_length": 4096, "optimizer": "paged_adamw_32bit"})
    assert found.unknown == ["sequence_length (did you mean sequence_len?)"]
    assert found.assumed == {"sequence_len": 2048}
    assert found.options["optimizer"] == "adamw-32bit-paged"


@pytest.mark.parametrize("read", [read_axolotl, read_training_arguments])
def test_tf32_matters_where_matmuls_are_of_fp32_numbers(read):
    for half, meant in ((False, True), (True, None)):
        found = read({"base_model": "llama-2-7b", "model": "llama-2-7b", "tf32": True, "bf16": half})
        assert found.options.get("tf32") is meant


def test_variables_and_quotes_of_a_script_are_filled_in(tmp_path):
    path = tmp_path / "llama.sh"
    path.write_text(FILES_AS_PEOPLE_WRITE_THEM["llama.sh"], encoding="utf-8")
    layout = read_line(read_file(str(path)).row | {"gpu": "a100"}).layout
    assert (layout.data, layout.micro_batches, layout.arch.vocab) == (4, 8, 128512)  # a multiple of 128 x 4
    assert layout.arch == replace(LLAMA_8B, ffn=10880, vocab=128512)


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("a.json", "{", "This is not valid JSON"),
        ("a.json", "[1]", "no names with values"),
        ("a.json", '{"a": 1}', "none of the formats"),
        ("a.yaml", "a: [", "This is not valid YAML"),
        ("a.yaml", "!!python/object:os.system x", "This is not valid YAML"),
        ("a.toml", "x = ", "This is not valid TOML"),
        ("a.toml", "x = 1", "lacks [model] and [training]"),
        ("a.py", "print(1", "cannot be read"),
        ("a.py", "print(1)", "not a torchtitan module"),
        ("a.sh", "echo hello", "none of the formats"),
        ("a.yaml", "{model: {dim: 8, n_layers: 2}, data: {seq_len: 64}}", "none of the formats"),
        ("a.yaml", "{model: {encoder: 8}, trainer: {devices: 2}}", "NeMo's model.num_layers is missing"),
        ("a.sh", "x --num-layers many --hidden-size 8 --num-attention-heads 2", "must be a whole number"),
        ("a.yaml", "MODEL_ARGS: {--num-layers: 2}", "--hidden-size is missing"),
        ("a.yaml", "MODEL_ARGS: {--encoder-num-layers: 2}", "--decoder-num-layers is missing"),
        ("a.yaml", "MODEL_ARGS: {--hybrid-layer-pattern: M*}", "state-space layers"),
        ("a.yaml", "MODEL_ARGS:", "this test trains nothing"),
        ("a.yaml", "MODEL_ARGS: {trainer.max_steps: 50}", "a recipe of NeMo that this file does not name"),
        ("a.yaml", "{MODEL: x, BATCH_SIZES: [1], NUM_TIMED_ITERS: 5}", "trains nothing"),
        ("a.json", '{"zero_optimization": {"stage": 7}}', "DeepSpeed has 0 to 3"),
        ("a.toml", "", "no names with values"),
        ("train.py", "import torch", "use `python -m helpers dry-run`"),
        ("a.bin", None, "is not a text file"),
        ("missing.json", False, "cannot be read"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path, name, text, complaint):
    path = tmp_path / name
    if text is None:
        path.write_bytes(b"\xff\xfe\x00\x80")
    elif text is not False:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(RecipeError, match=re.escape(complaint)) as caught:
        read_file(str(path))
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(path))


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("meta-llama/Llama-2-7b-hf", "llama-2-7b"),
        ("NousResearch/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("mistralai/Mistral-7B-v0.1", "mistral-7b"),
        ("TinyLlama/TinyLlama_v1.1", "tinyllama-1.1b"),
        ("google/gemma-3-4b-it", "gemma-3-4b"),
        ("acme/ours-9b", ""),
    ],
)
def test_models_of_the_hub_are_found_in_the_catalog(name, known):
    assert catalog_name(name) == known


@pytest.mark.parametrize(
    ("name", "text", "understood", "unknown"),
    [
        ("a.yaml", "base_model: x\nrl: dpo", {"method": "dpo"}, []),
        ("a.yaml", "base_model: x\nrl: grpo", {"method": "grpo"}, []),
        ("a.yaml", "base_model: x\nrl: orpo", {"method": None}, ["rl orpo"]),
        (
            "a.yaml",
            "base_model: x\nadapter: lora\nlora_modules_to_save: [embed_tokens, lm_head]\npeft_use_dora: true\n"
            "loraplus_lr_ratio: 16\npeft_use_rslora: true\nneftune_noise_alpha: 5",
            {"modules_to_save": ("embed_tokens", "lm_head"), "dora": True},
            [],
        ),
        (
            "a.json",
            '{"per_device_train_batch_size": 1, "use_peft": true, "modules_to_save": "lm_head", "use_rslora": true}',
            {"modules_to_save": ("lm_head",), "dora": False},
            [],
        ),
        ("a.yaml", "base_model: x\nliger_fused_linear_cross_entropy: true", {"loss": "fused"}, []),
        (
            "a.yaml",
            "base_model: x\nfsdp_version: 2\nfsdp_config: {offload_params: true, activation_checkpointing: true}",
            {"zero": "zero3", "offload": "all", "checkpointing": "full"},
            [],
        ),
        (
            "a.yaml",
            "base_model: x\ndeepspeed: ds/zero3_bf16_cpuoffload_all.json",
            {"zero": "zero3", "offload": "all"},
            [],
        ),
        (
            "a.yaml",
            "base_model: x\ndeepspeed: ds/zero3_bf16_cpuoffload_params.json",
            {"zero": "zero3", "offload": None},
            ["that ds/zero3_bf16_cpuoffload_params.json offloads parameters alone"],
        ),
        ("a.json", '{"per_device_train_batch_size": 1, "stage": "dpo", "bf16": true}', {"method": "dpo"}, []),
        ("a.json", '{"per_device_train_batch_size": 1, "stage": "rm", "bf16": true}', {"method": None}, ["stage rm"]),
        (
            "a.json",
            '{"per_device_train_batch_size": 1, "stage": "sft", "deepspeed": "ds_z2_offload_config.json"}',
            {"method": None, "zero": "zero2", "offload": "optimizer"},
            [],
        ),
    ],
)
def test_what_changes_the_bytes_is_taken_or_named(tmp_path, name, text, understood, unknown):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    found = read_file(str(path))
    assert {option: found.options.get(option) for option in understood} == understood
    assert [each for each in found.unknown if not each.startswith("the sizes of")] == unknown


def test_the_stage_of_a_file_for_one_process_holds_for_more(command, tmp_path):
    path = tmp_path / "accelerate.yaml"
    offloaded = "{zero_stage: 3, offload_optimizer_device: cpu, offload_param_device: cpu}"
    path.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_processes: 1\n"
        f"deepspeed_config: {offloaded}\n"
    )
    found = read_file(str(path)).options
    assert (found["gpus"], found["zero"], found["offload"]) == (1, "zero3", "all")
    for gpus in (1, 2):
        status, out, _ = command(
            "--from", str(path), "--model", "small-gpt", "--seq", "64", "--gpus", str(gpus), "--json"
        )
        assert status == 0
        assert json.loads(out)["recipe"]["parallel"]["shard"] == gpus


# -- changes


def test_the_changes_that_help_most_come_first():
    planned = {"a": Outcome(5, 110, True), "b": Outcome(9, 130, False), "c": Outcome(3, 105, True)}
    planned |= {"d": Outcome(4, 90, True), "e": Outcome(5, 120, True), "f": Outcome(5, 115, True)}

    def names(now):
        def outcome(name):
            if name == "refused":
                raise RecipeError("no")
            return planned[name]

        return [each.name for each in best_changes(now, iter([(n, n) for n in (*planned, "refused")]), outcome)]

    assert names(Outcome(6, 100, True)) == ["e", "f", "a"]  # the fastest of those that fit
    assert names(Outcome(10, 100, False)) == ["e", "f", "a"]  # those that fit, the fastest first
    assert names(Outcome(4, 100, False)) == ["c"]  # all others need more
    assert str(Change("x", Outcome(1, 1, False), -(2**30), 0.1)) == "x: -1.0 GiB, +10% tokens per second, does not fit"


def test_every_change_is_one_and_keeps_the_tokens_of_a_step():
    cluster = find_cluster("dgx-h100")
    layout = replace(BASES["megatron"], tensor=2, pipeline=2, micro_batch_size=2, recompute="full", attention="eager")
    for fits in (True, False):
        changes = dict(of_layout(layout, cluster, fits))
        assert len(changes) >= 4
        for changed in changes.values():
            assert changed != layout
            assert (changed.tokens, changed.ranks) == (layout.tokens, layout.ranks)
    config = TrainingConfig("llama-3.2-1b", micro_batch_size=2, gradient_accumulation_steps=4, checkpointing="full")
    for fits, words in ((True, "no recomputation"), (False, "AdamW with 8-bit state")):
        changes = dict(of_config(config, fits))
        assert words in changes
        for changed in changes.values():
            assert changed != config
            size = changed.micro_batch_size * changed.gradient_accumulation_steps
            assert size == 8
    assert "torch.compile" in dict(of_config(config, True))
    quantized = replace(config, lora_rank=8, quantize="nf4")
    assert any(words.startswith("torch.compile (measure it") for words in dict(of_config(quantized, True)))


# -- the command


@pytest.fixture
def command(monkeypatch, capsys):
    monkeypatch.setenv("TAS_PROGRESS", "off")

    def run(*arguments):
        try:
            status = main(["plan", *arguments])
        except SystemExit as stop:
            status = stop.code
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


@pytest.mark.parametrize("remedies", [["--seq 128"], []])
def test_where_a_plan_lists_what_to_change_no_second_list_follows(command, tmp_path, monkeypatch, remedies):
    class Planned:
        def __init__(self):
            self.remedies = remedies

        def __str__(self):
            return "\n".join(["the plan", *self.remedies])

        def to_json(self):
            return {}

    asked = []
    now = Outcome(10 * GiB, 1.0, not remedies)
    monkeypatch.setattr(import_module("helpers.planner.plan"), "plan", lambda *args, **options: Planned())
    monkeypatch.setattr(from_file, "outcome_of_recipe", lambda plan, cluster: now)
    monkeypatch.setattr(from_file, "_changes", lambda *args: asked.append(args) or [])
    path = tmp_path / "axolotl.yaml"
    path.write_text("base_model: openai-community/gpt2\nsequence_len: 256\nmicro_batch_size: 1\nbf16: true\n")
    status, out, _ = command("--from", str(path), "--gpu", "a100-40gb")
    assert status == 0
    assert ("No single change helps." in out) == (not remedies)
    assert len(asked) == (not remedies)  # the search for single changes takes a minute
    assert command("--from", str(path), "--gpu", "a100-40gb", "--json")[0] == 0


def test_the_command_plans_a_file_as_it_stands(command, tmp_path):
    path = tmp_path / "test.yaml"
    path.write_text(FILES_AS_PEOPLE_WRITE_THEM["test.yaml"].replace("--num-layers: 12", "--num-layers: 3"))
    status, out, _ = command("--from", str(path), "--gpu", "a100", "--gpus", "2")
    assert status == 0
    assert out.startswith(f"{path}: a functional test of Megatron-LM\n  not understood: my-own\n")
    assert "2 x a100-80gb: DDP 2, batch 4 x 4" in out
    assert re.search(r"^  fits in .* GiB per GPU; not counted: my-own$", out, re.MULTILINE)
    assert "helps" in out or "Single changes that help most:\n  1. " in out
    status, out, _ = command("--from", str(path), "--gpus", "2", "--json")
    answer = json.loads(out)
    assert (status, answer["not_understood"], answer["form"]) == (0, ["my-own"], "a functional test of Megatron-LM")
    assert len(answer["changes"]) <= 3
    row = read_file(str(path)).row | {"gpus": 2, "gpu": "h100"}
    assert answer["peak_allocated_bytes"] == rows_answer(row)["peak_allocated_bytes"]


def test_the_verdict_says_what_it_does_not_count():
    text = "llama, fits\n  rtx-4090-24gb   does not fit\n  it fits"
    assert from_file._less(text, []) == text
    assert from_file._less(text, ["the sizes of x"]) == text
    changed = from_file._less(text, [*"abcde", "the sizes of x"])
    assert changed == text.replace("does not fit", "does not fit; not counted: a, b, c, d and 1 more")


@pytest.mark.parametrize(
    ("name", "arguments", "complaint"),
    [
        ("ds_config.json", (), "names no model"),
        ("ds_config.json", ("--export", "megatron"), "--export cannot be combined with --from"),
        ("ds_config.json", ("--largest-batch",), "--largest-batch cannot be combined with --from"),
        ("nothing.yaml", (), "cannot be read"),
    ],
)
def test_what_cannot_be_planned_ends_with_2(command, tmp_path, name, arguments, complaint):
    path = tmp_path / name
    if name in FILES_AS_PEOPLE_WRITE_THEM:
        path.write_text(FILES_AS_PEOPLE_WRITE_THEM[name], encoding="utf-8")
    status, out, error = command("--from", str(path), *arguments)
    assert (status, out) == (2, "")
    assert complaint in error
    assert len(error.strip().splitlines()) == 1


def test_the_page_shows_a_file_that_is_read(tmp_path):
    page = (ROOT / "docs" / "planner.md").read_text(encoding="utf-8")
    shown = page.partition("### A file of your own")[2].partition("```yaml\n")[2].partition("```")[0]
    path = tmp_path / "axolotl.yaml"
    path.write_text(shown, encoding="utf-8")
    found = read_file(str(path))
    assert found.unknown == ["plugins"]
    asked = described(found.options)
    assert (asked.config.model, asked.config.lora_rank, asked.config.quantize) == ("llama-3.2-1b", 32, "nf4-dq")


# -- LLaMA-Factory


FACTORY = {
    "model_name_or_path": "meta-llama/Meta-Llama-3-8B-Instruct",
    **{"stage": "sft", "do_train": True, "finetuning_type": "lora", "lora_target": "all", "template": "llama3"},
    **{"dataset": "alpaca_en_demo", "cutoff_len": 1024, "per_device_train_batch_size": 1, "bf16": True},
    **{"gradient_accumulation_steps": 8, "preprocessing_num_workers": 16, "plot_loss": True},
}


def factory(folder, **changes):
    """Return what is read of LLaMA-Factory's file with these changes."""
    path = folder / "train.yaml"
    path.write_text(json.dumps(FACTORY | changes), encoding="utf-8")  # which is YAML, too
    return read_file(str(path))


def test_llama_factory_recomputes_and_puts_adapters_on_every_linear_layer(tmp_path):
    found = factory(tmp_path, quantization_bit=4)
    assert found.form == "LLaMA-Factory's YAML"
    assert not found.unknown
    options = found.options
    assert (options["model"], options["seq"], options["precision"]) == ("llama-3-8b", 1024, "bf16")
    assert (options["lora_rank"], len(options["lora_targets"]), options["quantize"]) == (8, 7, "nf4-dq")
    assert (options["checkpointing"], options["gradient_accumulation_steps"]) == ("full", 8)
    assert factory(tmp_path, disable_gradient_checkpointing=True).options["checkpointing"] == "none"
    assert factory(tmp_path, quantization_bit=8).options["quantize"] == "int8"
    assert factory(tmp_path, lora_target="q_proj,v_proj").options["lora_targets"] == ("q_proj", "v_proj")
    assert factory(tmp_path, quantization_bit=3, quantization_method="hqq").unknown == ["quantization_bit 3 by hqq"]


def test_llama_factory_trains_weights_in_fp32_unless_all_is_bf16(tmp_path):
    assert factory(tmp_path, finetuning_type="full").options["precision"] == "bf16-amp"
    assert factory(tmp_path, finetuning_type="full", bf16=None, pure_bf16=True).options["precision"] == "bf16"
    assert factory(tmp_path, finetuning_type="oft").unknown == ["finetuning_type oft"]


def test_the_deepspeed_file_beside_is_read(tmp_path):
    (tmp_path / "deepspeed").mkdir()
    zero = {"stage": 2, "reduce_bucket_size": 5e8, "overlap_comm": True, "offload_optimizer": {"device": "cpu"}}
    (tmp_path / "deepspeed" / "mine.json").write_text(json.dumps({"zero_optimization": zero}))
    (tmp_path / "runs").mkdir()
    found = factory(tmp_path / "runs", finetuning_type="full", deepspeed="deepspeed/mine.json")
    assert (found.options["zero"], found.options["offload"], found.options["gpus"]) == ("zero2", "optimizer", 8)
    assert (found.options["precision"], found.options["master_weights"]) == ("bf16", True)
    assert found.unknown == [
        "zero_optimization.reduce_bucket_size (up to 0.93 GiB of buffers that the plan leaves out)"
    ]
    by_name = factory(tmp_path, deepspeed="examples/deepspeed/ds_z0_config.json")
    assert by_name.options["zero"] == "none"


def test_a_model_that_the_catalog_lacks_is_named(tmp_path, capsys):
    path = tmp_path / "train.yaml"
    path.write_text(json.dumps(FACTORY | {"model_name_or_path": "me/my-model"}), encoding="utf-8")
    assert main(["plan", "--from", str(path)]) == 2
    assert "does not have me/my-model: add --model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ("[optimizer]\nearly_step_in_backward = true", "optimizer.early_step_in_backward"),
        ("[optimizer]\nname = 'Adam'", "optimizer.name Adam"),
        ("[optimizer]\nimplementation = 'foreach'", "optimizer.implementation foreach"),
        ("[model]\nconverters = ['mx']", "model.converters mx"),
        ("[parallelism]\nexpert_tensor_parallel_degree = 2", "parallelism.expert_tensor_parallel_degree 2"),
    ],
)
def test_what_torchtitan_would_do_and_plans_do_not_is_named(tmp_path, lines, named):
    head = "" if lines.startswith("[model]") else "[model]\n"
    text = f"{head}{lines}\n[training]\nseq_len = 2048\nenable_cpu_offload = true\n"
    path = tmp_path / "train.toml"
    path.write_text(text.replace("[model]\n", "[model]\nname = 'llama3'\nflavor = '8B'\n"), encoding="utf-8")
    assert set(read_file(str(path)).unknown) == {named, "training.enable_cpu_offload"}


@pytest.mark.parametrize(
    ("lines", "field", "value"),
    [
        ("[training]\ndtype = 'bfloat16'", "precision", "bf16"),
        ("[training]\nmixed_precision_param = 'float32'", "precision", "fp32"),
        ("[training]\ndata_parallel_type = 'ddp'", "zero", "none"),
        ("[training]\n[parallelism]\nfsdp_reshard_after_forward = 'never'", "reshard_after_forward", False),
        (
            "[training]\n[parallelism]\ntensor_parallel_degree = 2\nenable_async_tensor_parallel = true",
            "tensor_overlap",
            True,
        ),
    ],
)
def test_torchtitans_fields_decide_what_they_say(tmp_path, lines, field, value):
    path = tmp_path / "train.toml"
    path.write_text(f"[model]\nname = 'llama3'\nflavor = '8B'\n{lines}\n", encoding="utf-8")
    found = read_file(str(path))
    assert not found.unknown
    assert getattr(read_line(found.row | {"gpu": "a100"}).layout, field) == value


def test_what_trl_says_of_the_model_is_read():
    given = {"model_name_or_path": "mistralai/Mistral-7B-v0.1", "per_device_train_batch_size": 4, "bf16": True}
    given |= {"torch_dtype": "bfloat16", "attn_implementation": "flash_attention_2", "per_device_eval_batch_size": 8}
    found = read_training_arguments(given)
    assert (found.options["precision"], found.unknown) == ("bf16", [])
    given |= {"use_peft": True, "lora_r": 32, "lora_target_modules": ["q_proj", "v_proj"], "load_in_4bit": True}
    found = read_training_arguments(given)
    assert (found.options["lora_rank"], found.options["quantize"]) == (32, "nf4")
    assert (found.options["lora_targets"], found.unknown) == (("q_proj", "v_proj"), [])


def test_axolotl_takes_the_deepspeed_file_that_it_names(tmp_path):
    (tmp_path / "deepspeed_configs").mkdir()
    zero = {"stage": 1, "overlap_comm": True, "reduce_bucket_size": 2e8}
    (tmp_path / "deepspeed_configs" / "mine.json").write_text(json.dumps({"zero_optimization": zero}))
    found = read_axolotl({"base_model": "llama-2-7b", "deepspeed": "deepspeed_configs/mine.json"}, tmp_path)
    assert found.options["zero"] == "zero1"
    assert found.unknown == [
        "zero_optimization.reduce_bucket_size (up to 0.75 GiB of buffers that the plan leaves out)"
    ]


def test_changes_of_a_sharded_run_are_compared_with_its_messages(tmp_path):
    path = tmp_path / "config.json"
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 8}
    path.write_text(json.dumps({"model_type": "llama", "vocab_size": 1000} | sizes))
    parallel = ParallelConfig(shard=4, zero="zero3")
    config = TrainingConfig(str(path), seq=2048, checkpointing="every", parallel=parallel)
    cluster = find_cluster("a100-80gb")
    result = plan(config, cluster=cluster)
    now = outcome_of_recipe(result, cluster)
    assert now == outcome_of_config(config, cluster)
    assert now.speed == result.forecasts["a100-80gb"].per_second
    (change,) = (each for name, each in of_config(config, now.fits) if name == "no recomputation")
    assert outcome_of_config(change, cluster).speed > 1.05 * now.speed
