"""`plan --from FILE`: the files of trainers that are neither Hugging Face's nor Megatron's, as people write them."""

from helpers.planner.catalog.archs import arch_of
from helpers.planner.config import RecipeError
from helpers.planner.described import described
from helpers.planner.importers import read_file
from helpers.planner.importers.references import resolved
from helpers.planner.rows.line import read_line

import pytest

TUNE = """# To train on four devices:
#   tune run --nproc_per_node 4 lora_finetune_distributed --config mine
model:
  _component_: torchtune.models.qwen2_5.qlora_qwen2_5_7b_instruct
  lora_attn_modules: ['q_proj', 'output_proj']
  apply_lora_to_mlp: True
  lora_rank: 16
  lora_alpha: 32
tokenizer: {_component_: torchtune.models.qwen2_5.qwen2_5_tokenizer, max_seq_len: 1024}
dataset: {_component_: torchtune.datasets.alpaca_dataset, packed: True}
batch_size: 2
gradient_accumulation_steps: 4
optimizer: {_component_: bitsandbytes.optim.PagedAdamW8bit, lr: 2e-5}
loss: {_component_: torchtune.modules.loss.LinearCrossEntropyLoss}
enable_activation_checkpointing: True
enable_activation_offloading: True
compile: False
dtype: bf16
my_own: 3
"""
FULL = """model: {_component_: torchtune.models.llama3_2.llama3_2_1b}
optimizer: {_component_: torch.optim.AdamW, fused: True}
optimizer_in_bwd: True
batch_size: 1
dtype: bf16
"""
SWIFT = """NPROC_PER_NODE=2 CUDA_VISIBLE_DEVICES=0,1 swift sft \\
    --model Qwen/Qwen2.5-7B-Instruct --tuner_type lora --lora_rank 16 \\
    --target_modules q_proj v_proj --torch_dtype bfloat16 --per_device_train_batch_size 2 \\
    --gradient_accumulation_steps 8 --max_length 2048 --deepspeed zero2 \\
    --dataset 'some/data#500' --modules_to_save embed_tokens lm_head --quant_bits 4 --learning_rate 1e-4 --my_own 3
"""
MEGATRON = """# 4 * 60GiB
NNODES=2 NPROC_PER_NODE=4 \\
megatron sft --model Qwen/Qwen3-8B --max_length 4096 \\
    --tensor_model_parallel_size 2 --sequence_parallel true --micro_batch_size 2 --global_batch_size 16 \\
    --recompute_granularity full --recompute_method uniform --recompute_num_layers 1 \\
    --tuner_type lora --target_modules linear_qkv linear_proj --lr 1e-4 --my_own 3
# megatron export --model Qwen/Qwen2.5-0.5B
"""
AUTO = """recipe: Finetune
step_scheduler: {global_batch_size: 64, local_batch_size: 4}
model: {_target_: NeMoAutoModelForCausalLM.from_pretrained, pretrained_model_name_or_path: meta-llama/Llama-3.1-8B}
distributed: {strategy: fsdp2, tp_size: 2, dp_size: none, activation_checkpointing: true}
packed_sequence: {packed_sequence_size: 2048}
optimizer: {_target_: torch.optim.AdamW}
my_own: 3
"""
ADAPTERS = (
    AUTO.replace("tp_size: 2, ", "") + "peft: {dim: 8, target_modules: '*_proj'}\nquantization: {load_in_4bit: true}\n"
)
FOUNDRY = """variables: {length: 1024}
max_seq_len: ${variables.length}
model: {name: mpt_causal_lm, d_model: 1024, n_heads: 8, n_layers: 12, max_seq_len: '${variables.length}'}
global_train_batch_size: 256
device_train_microbatch_size: 8
precision: amp_bf16
fsdp_config: {sharding_strategy: FULL_SHARD, mixed_precision: PURE, activation_checkpointing: true}
my_own: 3
"""
LITGPT = """checkpoint_dir: checkpoints/meta-llama/Meta-Llama-3-8B
precision: bf16-true
quantize: bnb.nf4
devices: 2
num_nodes: 1
lora_r: 32
lora_alpha: 16
lora_dropout: 0
lora_key: true
lora_head: true
data: {class_path: litgpt.data.Alpaca2k, init_args: {seed: 42}}
train: {global_batch_size: 16, micro_batch_size: 2, max_seq_length: 512, epochs: 2, tie_embeddings: null}
eval: {interval: 100}
optimizer: {class_path: bitsandbytes.optim.PagedAdamW, init_args: {lr: 0.0002}}
my_own: 3
"""
PRETRAIN = """model_name: tiny-llama-1.1b
model_config:
precision: bf16-mixed
initial_checkpoint_dir:
data: TinyLlama
train: {global_batch_size: 512, micro_batch_size: 4, max_seq_length: 2048}
optimizer: {class_path: torch.optim.AdamW, init_args: {lr: 4e-4}}
devices: auto
"""
NANOTRON = """data_stages: [{name: stable, start_training_step: 1}]
model:
  dtype: bfloat16
  make_vocab_size_divisible_by: 4
  init_method: {std: 0.025}
  model_config: {is_llama_config: true, hidden_act: silu, hidden_size: 512, intermediate_size: 1536, vocab_size: 49153,
    num_attention_heads: 8, num_hidden_layers: 6, num_key_value_heads: 2, tie_word_embeddings: true, rope_theta: 1e4}
optimizer: {accumulate_grad_in_fp32: true, zero_stage: 1, optimizer_factory: {name: adamW}}
parallelism: {dp: 4, tp: 2, pp: 3, pp_engine: afab, tp_mode: REDUCE_SCATTER, recompute_layer: true,
  tp_linear_async_communication: true, my_own: 3}
tokens: {batch_accumulation_per_replica: 6, micro_batch_size: 2, sequence_length: 2048, train_steps: 10}
"""
TRL = """model_name_or_path: Qwen/Qwen2.5-0.5B
dataset_name: stanfordnlp/imdb
learning_rate: 0.0001
"""
OPTIONS = {  # file -> what it says, and what of it is not understood
    "tune.yaml": (
        TUNE,
        {"model": "qwen2.5-7b", "quantize": "nf4-dq", "lora_rank": 16, "lora_alpha": 32.0, "lora_dtype": "weights"}
        | {"lora_targets": ("q_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), "gpus": 4, "zero": "zero3"}
        | {"seq": 1024, "optimizer": "adamw-8bit-paged", "loss": "chunked", "checkpointing": "full"},
        ["enable_activation_offloading", "my_own"],
    ),
    "full.yaml": (
        FULL,
        {"model": "llama-3.2-1b", "precision": "bf16", "step_in_backward": True, "optimizer_impl": "fused"},
        [],
    ),
    "swift.sh": (
        SWIFT,
        {"model": "qwen2.5-7b", "gpus": 2, "zero": "zero2", "lora_rank": 16, "lora_targets": ("q_proj", "v_proj")}
        | {"quantize": "nf4-dq", "checkpointing": "full", "precision": "bf16", "seq": 2048, "lora_dropout": 0.05}
        | {"modules_to_save": ("embed_tokens", "lm_head")},
        ["my_own"],
    ),
    "adapters.yaml": (
        ADAPTERS,
        {"model": "llama-3.1-8b", "gpus": 8, "zero": "zero3", "quantize": "nf4", "lora_rank": 8, "seq": 2048}
        | {"gradient_accumulation_steps": 2, "micro_batch_size": 4},
        ["my_own"],
    ),
    "litgpt.yaml": (
        LITGPT,
        {"model": "llama-3-8b", "gpus": 2, "zero": "zero3", "checkpointing": "full", "precision": "bf16", "seq": 512}
        | {"quantize": "nf4", "lora_rank": 32, "lora_targets": ("q_proj", "k_proj", "v_proj", "lm_head")}
        | {"lora_dropout": 0.0, "gradient_accumulation_steps": 4, "optimizer": "adamw-32bit-paged", "compile": False},
        ["my_own"],
    ),
    "pretrain.yaml": (
        PRETRAIN,
        {"model": "tinyllama-1.1b", "precision": "bf16-amp", "compile": True, "optimizer_impl": "fused", "seq": 2048}
        | {"gradient_accumulation_steps": 128, "checkpointing": "none", "lora_rank": None},
        [],
    ),
    "trl.yaml": (TRL, {"model": "qwen2.5-0.5b", "micro_batch_size": 8, "precision": "fp32"}, []),
}
ROWS = {
    "nanotron.yaml": (
        NANOTRON,
        {"gpus": 24, "tensor": 2, "pipeline": 3, "seq": 2048, "recompute": "full", "zero": "zero1", "micro_batches": 6}
        | {"schedule": "gpipe", "sequence_parallel": True, "tensor_overlap": True, "engine": "megatron"},
        ["parallelism.my_own"],
    ),
    "megatron.sh": (
        MEGATRON,
        {"gpus": 8, "tensor": 2, "seq": 4096, "recompute": "full", "lora_rank": 8, "lora_targets": "attention"}
        | {"dropout": 0.0, "attention_mask": False, "zero": "zero1", "micro_batches": 2},
        ["my_own"],
    ),
    "auto.yaml": (
        AUTO,
        {"gpus": 8, "tensor": 2, "seq": 2048, "recompute": "full", "zero": "zero3", "micro_batches": 4},
        ["my_own"],
    ),
    "foundry.yaml": (
        FOUNDRY,
        {"gpus": 8, "seq": 1024, "recompute": "full", "zero": "zero3", "micro_batches": 4, "micro_batch_size": 8},
        ["my_own"],
    ),
}


def read(folder, name, text):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return read_file(str(path))


@pytest.mark.parametrize("name", OPTIONS)
def test_what_trains_a_hugging_face_model_becomes_options_of_plan(tmp_path, name):
    text, said, unknown = OPTIONS[name]
    found = read(tmp_path, name, text)
    assert {key: found.options.get(key) for key in said} == said
    assert found.unknown == unknown
    described(found.options | {"gpu": "h100"})  # `plan` takes them


@pytest.mark.parametrize("name", ROWS)
def test_what_an_engine_trains_becomes_a_row(tmp_path, name):
    text, said, unknown = ROWS[name]
    found = read(tmp_path, name, text)
    layout = read_line({key: value for key, value in found.row.items() if value is not None} | {"gpu": "h100"}).layout
    values = {key: layout.ranks if key == "gpus" else getattr(layout, key) for key in said}
    assert values == said
    assert found.unknown == unknown


def test_llm_foundry_says_sizes_and_others_name_models(tmp_path):
    arch = read(tmp_path, "a.yaml", FOUNDRY).row["arch"]
    assert (arch["layers"], arch["hidden"], arch["ffn"], arch["vocab"]) == (12, 1024, 4096, 50368)
    assert (arch["tied"], arch["positions"]) == (True, 1024)
    named = FOUNDRY.replace("name: mpt_causal_lm, d_model: 1024, n_heads: 8, n_layers: 12", "name: hf_causal_lm")
    named = named.replace(
        "name: hf_causal_lm", "name: hf_causal_lm, pretrained_model_name_or_path: mistralai/Mistral-7B-v0.1"
    )
    row = read(tmp_path, "b.yaml", named).row
    assert (row["model"], "arch" in row) == ("mistral-7b", False)
    assert arch_of(row["model"]).layers == 32


@pytest.mark.parametrize(
    ("text", "old", "new", "unknown"),
    [
        (
            FULL,
            "llama3_2.llama3_2_1b",
            "llama3_2_vision.llama3_2_vision_11b",
            "the sizes of llama3_2_vision.llama3_2_vision_11b",
        ),
        (FULL, "torch.optim.AdamW", "my.Lion2", "optimizer Lion2"),
        (FULL, "batch_size: 1", "loss: {_component_: my.loss.PPOLoss}", "loss PPOLoss"),
        (AUTO, "fsdp2", "megatron_fsdp", "distributed.strategy megatron_fsdp"),
        (FOUNDRY, "PURE", "FULL", "fsdp_config.mixed_precision FULL"),
        (FOUNDRY, "FULL_SHARD", "FULL_SHARD, activation_cpu_offload: true", "fsdp_config.activation_cpu_offload"),
        (SWIFT, "--tuner_type lora", "--tuner_type boft", "tuner_type boft"),
        (SWIFT, "--tuner_type", "--rlhf_type kto --tuner_type", "rlhf_type kto"),
        (MEGATRON, "--tuner_type", "--mtp_num_layers 1 --tuner_type", "mtp_num_layers"),
    ],
)
def test_what_would_change_the_bytes_is_named(tmp_path, text, old, new, unknown):
    name = "a.sh" if text in (SWIFT, MEGATRON) else "a.yaml"
    assert old in text
    assert unknown not in read(tmp_path, name, text).unknown
    assert unknown in read(tmp_path, name, text.replace(old, new)).unknown


def test_nemo_counts_the_embedding_and_the_loss_as_blocks(tmp_path):
    text = "{trainer: {devices: 8, num_nodes: 1}, model: {num_layers: 14, hidden_size: 64, num_attention_heads: 4,"
    text += " pipeline_model_parallel_size: 4, encoder_seq_length: 64, account_for_embedding_in_pipeline_split: true,"
    row = read(tmp_path, "a.yaml", text + " account_for_loss_in_pipeline_split: true}}").row
    assert row["stage_sizes"] == [3, 4, 4, 3]
    assert "stage_sizes" not in read(tmp_path, "b.yaml", text.replace("true", "false") + "}}").row


def test_nanotron_says_sizes_and_experts(tmp_path):
    arch = read(tmp_path, "a.yaml", NANOTRON).row["arch"]
    assert (arch["layers"], arch["hidden"], arch["kv_heads"], arch["ffn"]) == (6, 512, 2, 1536)
    assert (arch["tied"], arch["gated"], arch["vocab"]) == (True, True, 49160)  # a multiple of 4 x 2
    table = "moe_config: {num_experts: 8, top_k: 1, moe_intermediate_size: 768, enable_shared_expert: true}"
    arch = read(tmp_path, "b.yaml", NANOTRON.replace("rope_theta: 1e4", table)).row["arch"]
    assert (arch["experts"], arch["experts_per_token"], arch["moe_ffn"], arch["shared_experts"]) == (8, 1, 768, 1)
    with pytest.raises(RecipeError, match="state-space layers"):
        read(tmp_path, "c.yaml", NANOTRON.replace("is_llama_config", "is_mamba_config"))
    with pytest.raises(RecipeError, match="lacks num_hidden_layers"):
        read(tmp_path, "d.yaml", NANOTRON.replace("num_hidden_layers", "n_layers"))


@pytest.mark.parametrize(
    ("old", "new", "unknown"),
    [
        ("precision: bf16-true", "precision: transformer-engine", "precision transformer-engine"),
        ("quantize: bnb.nf4", "quantize: bnb.fp4", "quantize bnb.fp4"),
        ("bitsandbytes.optim.PagedAdamW", "grokadamw.GrokAdamW", "optimizer GrokAdamW"),
        ("meta-llama/Meta-Llama-3-8B", "tiiuae/falcon-7b", "the sizes of checkpoints/tiiuae/falcon-7b"),
    ],
)
def test_what_litgpt_would_do_and_plans_do_not_is_named(tmp_path, old, new, unknown):
    assert unknown in read(tmp_path, "a.yaml", LITGPT.replace(old, new)).unknown


def test_a_value_that_stands_elsewhere_is_not_given(tmp_path):
    found = read(tmp_path, "a.yaml", LITGPT.replace("lora_dropout: 0", "lora_dropout: ${DROPOUT}"))
    assert found.options["lora_dropout"] == 0.05
    with pytest.raises(RecipeError, match="lora_dropout is 'much'; it must be a number"):
        read(tmp_path, "b.yaml", LITGPT.replace("lora_dropout: 0", "lora_dropout: much"))


def test_a_recipe_without_an_optimizer_trains_nothing(tmp_path):
    with pytest.raises(RecipeError, match="no optimizer"):
        read(tmp_path, "a.yaml", FULL.replace("optimizer:", "quantizer:"))


def test_ranks_that_split_experts_beside_adapters_are_named(tmp_path):
    text = ADAPTERS.replace("strategy: fsdp2", "strategy: fsdp2, ep_size: 8")
    assert "distributed.ep_size (experts beside adapters)" in read(tmp_path, "a.yaml", text).unknown


def test_a_batch_that_eight_gpus_do_not_share_takes_fewer(tmp_path):
    found = read(tmp_path, "a.yaml", AUTO.replace("global_batch_size: 64", "global_batch_size: 8"))
    assert found.row["gpus"] == found.assumed["gpus"] == 4


def test_references_lead_to_values_from_the_top_or_from_their_table():
    given = {
        "a": {"b": 3, "c": "${.b}", "d": "${a.b}", "e": ["${a.c}"]},
        "f": "${a.missing}",
        "g": "${g}",
        "h": "x${a.b}",
    }
    found = {"a": {"b": 3, "c": 3, "d": 3, "e": [3]}, "f": "${a.missing}", "g": "${g}", "h": "x${a.b}"}
    assert resolved(given) == found


@pytest.mark.parametrize(
    ("launcher", "sharding", "gpus", "zero"),
    [
        ("torchrun --nproc_per_node 4 --nnodes 2", "", 8, "none"),
        ("accelerate launch --num_processes=6", "", 6, "none"),
        ("deepspeed --num_gpus 4", "--deepspeed ds_zero2.json", 4, "zero2"),
        ("python", "", None, None),
        ("torchrun --nproc_per_node 1", "", 1, None),
    ],
)
def test_a_launcher_says_how_many_gpus_train(tmp_path, launcher, sharding, gpus, zero):
    script = (
        f"{launcher} train.py --model_name_or_path gpt2 --per_device_train_batch_size 4 --bf16 {sharding} --my_own 3"
    )
    found = read(tmp_path, "a.sh", script)
    assert (found.options.get("gpus"), found.options.get("zero")) == (gpus, zero)
    assert "gpus" not in found.assumed
    assert "my_own" in found.unknown
