"""ms-swift's scripts: `swift sft` is a trainer of Hugging Face models, `megatron sft` one on Megatron.

The defaults are those of swift/arguments (adapters on all linear layers, blocks recomputed, BF16) and of
swift/megatron/arguments (no dropout but the adapters', a fused loss, attention recomputed, no attention mask).
"""

import re
from pathlib import Path
from typing import Any

from .hugging_face import read_training_arguments
from .megatron import QUIET, ranks_of, step_of
from .names import catalog_name, layers_of
from .said import OFF, Imported, Said
from .scripts import arguments_of, gpus_of, values_of

_DEFAULTS = {
    "bf16": "true",
    "micro-batch-size": "1",
    "global-batch-size": "16",
    "recompute-granularity": "selective",
    "use-distributed-optimizer": "true",
    "hidden-dropout": "0",
    "cross-entropy-loss-fusion": "true",
    "no-create-attention-mask-in-dataloader": "true",
    "attention-backend": "flash",
}
_LENGTH = 2048  # tokens, where a script leaves the model's own
_OWN_QUIET = """
    add-version agent-template check-model columns dataset* finetune freeze-* gradient-accumulation-fusion
    grad-reduce-in-bf16 group-by-length kv-* loss-scale lora-alpha lora-bias max-* merge-lora mlp-padding-free
    model-author model-name moe-expert-capacity-factor moe-grouped-gemm moe-shared-expert-overlap moe-z-loss-coeff
    no-save-* num-train-epochs num-workers output-dir packing* padding-free report-to save-* split-dataset-ratio
    streaming strict system task-type template train-dataloader-* truncation-strategy trust-remote-code use-hf
    dataloader-* target-modules temperature top-* epsilon* num-generations reward-* dynamic-sample overlong-filter
    importance-sampling-level masked-softmax-fusion fp8-recipe
    vit-* num-labels lazy-tokenize load-* enable-thinking cached-* deepspeed-* beta rpo-alpha loss-type
    torch-dtype calculate-per-token-loss interleave-* val-dataset* use-rslora callbacks logging-steps steps-per-*
    add-non-thinking-prefix external-plugins metric* bridge-backend language-model-only response-prefix
"""
_QUIET = (*QUIET, *_OWN_QUIET.split())
_OWN_WORDS = """
    tuner_type train_type sft_type target_modules modules_to_save attn_impl quant_bits quant_method model
    lora_bias
"""
_OWN = frozenset(_OWN_WORDS.split())  # what `TrainingArguments` calls otherwise
_HUGGING_FACE_QUIET = """
    dataset val_dataset custom_* columns load_from_cache_file split_dataset_ratio system template* model_author
    model_name temperature top_* repetition_penalty max_completion_length num_generations log_completions reward_*
    freeze_* task_type padding_free use_hf external_plugins num_iterations epsilon* dynamic_sample max_resample_times
    max_turns streaming loss_scale loss_type lmbda beta rpo_alpha cached_dataset truncation_strategy lazy_tokenize
    enable_thinking agent_* create_checkpoint_symlink add_version check_model acc_strategy add_non_thinking_prefix
    interleave_prob num_labels problem_type norm_* seq_kd sft_alpha merge_lora strict steps_per_generation
    generation_batch_size stop_words multi_turn_scheduler response_prefix max_pixels bnb_4bit_* vit_* use_chat_*
    packing* mrl_dims deterministic_* ignore_args_error to_cached_dataset predict_* train_dataloader_*
    router_aux_loss_coef callbacks use_dft_loss enable_*_loss stopping_strategy eval* delta overlong_filter
    importance_sampling_level vllm_server_*
"""


def trainer_of(text: str) -> str:
    """Return which of ms-swift's trainers a script starts, "megatron" or "swift"; "" where it starts neither."""
    found = re.search(r"^[^#\n]*\b(megatron|swift) +(?:sft|pt|rlhf)\b", text, re.MULTILINE)
    by_file = re.search(r"^[^#\n]*swift/cli/(_megatron|)", text, re.MULTILINE)
    return found[1] if found else "megatron" if by_file and by_file[1] else "swift" if by_file else ""


def read_swift(text: str, folder: Path) -> Imported:
    """Return the run of a script of `swift sft`, whose other arguments are those of `TrainingArguments`."""
    given = {name.lstrip("-").replace("-", "_"): value for name, value in arguments_of(text).items()}
    said, gpus = Said(given), gpus_of(text)
    tuner = said.text("tuner_type", "train_type", "sft_type", default="lora")
    named = {name: value for name, value in given.items() if name not in _OWN}
    named.setdefault("gradient_checkpointing", "true")
    named.setdefault("torch_dtype", "bfloat16")
    named.setdefault("per_device_train_batch_size", "1")
    named.setdefault("model_name_or_path", said.text("model"))
    named.setdefault("optim", "adamw_torch_fused")
    if tuner == "lora":
        targets = values_of(text, "--target_modules") or ["all-linear"]
        named |= {"use_peft": "true", "lora_rank": said.text("lora_rank", default="8")}
        named |= {"lora_target_modules": targets if targets != ["all-linear"] else "all-linear"}
        named |= {"lora_modules_to_save": values_of(text, "--modules_to_save")} if "modules_to_save" in said else {}
        named.setdefault("lora_dropout", "0.05")
    named |= {"attn_implementation": "eager"} if said.text("attn_impl") == "eager" else {}
    if said.text("quant_method", default="bnb") == "bnb" and said.number("quant_bits") in (4, 8):
        named |= {f"load_in_{said.number('quant_bits')}bit": "true", "use_bnb_nested_quant": "true"}
    named |= {"world_size": str(gpus)} if gpus > 1 else {}
    imported = read_training_arguments(
        named, "a launch script of ms-swift", folder, quiet=tuple(_HUGGING_FACE_QUIET.split())
    )
    assert imported.options is not None
    if tuner not in ("lora", "full"):
        imported.unknown.append(f"tuner_type {tuner}")
    if tuner == "full" and said.flag("deepspeed"):  # weights of 16 bits beside FP32 masters
        imported.options["master_weights"] = True
    return imported


def read_megatron_swift(text: str) -> Imported:
    """Return the run of a script of `megatron sft`: Megatron's arguments, and a model of the Hub instead of sizes."""
    arguments, gpus = arguments_of(text), gpus_of(text)
    named = {name.lstrip("-").replace("_", "-"): value for name, value in arguments.items()}
    named["seq-length"] = named.get("max-length", str(_LENGTH))
    if named.get("torch-dtype", "").lower() == "float16":
        named |= {"bf16": "false", "fp16": "true"}
    if "virtual-pipeline-model-parallel-size" in named:
        named["num-virtual-stages-per-pipeline-rank"] = named.pop("virtual-pipeline-model-parallel-size")
    said = Said({**_DEFAULTS, **named})
    name = said.text("model", "load", "mcore-model")
    known = catalog_name(name)
    row: dict[str, Any] = {"framework": "ms-swift", **({"model": known} if known else {})}
    row |= ranks_of(said, layers_of(known) if known else 0) | step_of(said)
    imported = Imported("a launch script of ms-swift on Megatron", row)
    _adapters(said, row, values_of(text, "--target_modules") or ["all-linear"])
    _method(said, imported)
    least = row["tensor"] * row["pipeline"] * row["context"]
    row["gpus"] = gpus or -(-least // 8) * 8
    imported.assumed |= ({} if gpus else {"gpus": row["gpus"]}) | ({} if "max-length" in said else {"seq": _LENGTH})
    imported.unknown += [] if known else [f"the sizes of {name}"]
    imported.unknown += [name.replace("-", "_") for name in said.unknown(_QUIET)]
    return imported


def _adapters(said: Said, row: dict[str, Any], targets: list[str]) -> None:
    if said.text("tuner-type", "train-type", default="full" if "lora-rank" not in said else "lora") != "lora":
        return
    row["lora_rank"] = said.number("lora-rank", default=8)
    row["lora_dropout"] = said.share("lora-dropout", 0.05)
    row["lora_targets"] = "all" if targets == ["all-linear"] else tuple(targets)


def _method(said: Said, imported: Imported) -> None:
    method = said.text("rlhf-type").lower()
    imported.unknown += [] if method in OFF else [f"rlhf_type {method}"]
    for name in ("mtp-num-layers", "optimizer-cpu-offload", "use-precision-aware-optimizer", "use-megatron-fsdp"):
        if said.flag(name):
            imported.unknown.append(name.replace("-", "_"))
