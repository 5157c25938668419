"""What trains Hugging Face models: `TrainingArguments`, Accelerate, DeepSpeed's JSON, and Axolotl's YAML."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...core.units import GiB
from ..config import REDUCE_BUCKET, RecipeError
from .llama_factory import QUIET as FACTORY_QUIET
from .llama_factory import deepspeed_beside, is_llama_factory, read_method, sharded_by
from .names import catalog_name
from .said import OFF, Imported, Said

_OPTIMIZERS = {
    "adamw_torch": ("adamw", "foreach"),
    "adamw_hf": ("adamw", "foreach"),
    "adamw_torch_fused": ("adamw", "fused"),
    "adamw_apex_fused": ("adamw", "fused"),
    "adamw_bnb_8bit": ("adamw-8bit", "foreach"),
    "adamw_8bit": ("adamw-8bit", "foreach"),
    "adamw_torch_8bit": ("adamw-8bit", "foreach"),
    "paged_adamw": ("adamw-32bit-paged", "foreach"),
    "paged_adamw_32bit": ("adamw-32bit-paged", "foreach"),
    "paged_adamw_8bit": ("adamw-8bit-paged", "foreach"),
    "adam": ("adam", "foreach"),
    "adafactor": ("adafactor", "foreach"),
    "sgd": ("sgd", "foreach"),
}
_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_QUIET = (
    *(
        "output_dir",
        "learning_rate",
        "lr_*",
        "datasets*",
        "logging_*",
        "num_epochs",
        "num_train_epochs",
        "seed",
    ),
    *("sample_packing*", "eval_*", "warmup_*", "saves_per_epoch", "save_*", "val_set_size", "weight_decay", "wandb_*"),
    *("evals_per_epoch", "dataset_*", "special_tokens*", "resume_from_checkpoint", "gradient_checkpointing_kwargs*"),
    *("lora_model_dir", "model_type", "chat_template*", "tokenizer_*", "pad_to_sequence_len", "strict", "max_steps"),
    *("trust_remote_code", "remove_unused_columns", "eot_tokens*", "processor_type", "skip_prepare_dataset"),
    *("loss_watchdog_*", "torchdistx_path", "gptq_*", "ddp_*", "push_*", "hub_*", "adam_*", "max_grad_norm", "group_*"),
    *(
        "train_on_inputs",
        "shuffle_*",
        "tokens*",
        "early_stopping_patience",
        "lora_fan_in_fan_out",
        "debug",
        "batch_size",
    ),
    *("fsdp_*", "fsdp.*", "report_to*", "run_name", "dataloader_*", "disable_tqdm", "do_*", "overwrite_*", "data_seed"),
    *("flash_attn_*", "lora_*_kernel", "trackio_*", "mlflow_*", "base_model_*", "is_*_derived_model", "cosine_*"),
    *(
        "per_device_eval_*",
        "log_level*",
        "model_revision",
        "beta",
        "loss_type",
        "max_prompt_length",
        "packing*",
        "lora_r",
    ),
    *("lora_alpha", "bnb_4bit_quant_type", "lora_task_type", "eos_token", "chat_template_path", "completion_only_loss"),
    *("loraplus_*", "peft_use_rslora", "use_rslora", "neftune_noise_alpha"),
    *("pretraining_dataset*", "test_datasets*", "load_best_*", "metric_*", "greater_is_better", "label_*", "length_*"),
)
_QUIET_ACCELERATE = (
    *("compute_environment", "debug", "downcast_bf16", "machine_rank", "main_*", "rdzv_*", "same_network", "tpu_*"),
    *("use_cpu", "enable_cpu_affinity", "dynamo_config.*", "fsdp_config.*", "deepspeed_config.*", "gpu_ids"),
    *("command_file", "commands", "megatron_lm_config.*", "mpirun_config.*", "ipex_config.*", "fp8_config.*"),
)
_QUIET_DEEPSPEED = (
    *("optimizer.*", "scheduler.*", "steps_per_print", "wall_clock_breakdown", "gradient_clipping", "fp16.*", "bf16.*"),
    *("zero_optimization.*", "zero_allow_untested_optimizer", "communication_data_type", "prescale_gradients", "amp.*"),
    *("comms_logger.*", "flops_profiler.*", "tensorboard.*", "wandb.*", "for_your_script.*", "train_batch_size"),
    *("gradient_predivide_factor", "sparse_gradients", "dump_state", "torch_autocast.*", "*.overlap_comm"),
    *("zero_force_ds_cpu_optimizer", "checkpoint.*", "data_types.*", "compile.*"),
)


def _model(imported: Imported, name: str) -> None:
    known = catalog_name(name)
    if known:
        imported.options["model"] = known
    elif name:
        imported.unknown.append(f"the sizes of {name}")


def _optimizer(said: Said, imported: Imported, *names: str) -> None:
    name = said.text(*names).lower()
    if name in _OPTIMIZERS:
        imported.options["optimizer"], imported.options["optimizer_impl"] = _OPTIMIZERS[name]
    elif name:
        imported.unknown.append(f"optimizer {name}")


def read_axolotl(given: dict[str, Any], folder: Path = Path()) -> Imported:
    """Return the run of an Axolotl YAML in a folder."""
    said = Said(given)
    options: dict[str, Any] = {"engine": "pytorch"}
    imported = Imported("Axolotl's YAML", None, options)
    _model(imported, said.text("base_model"))
    _optimizer(said, imported, "optimizer")
    options["seq"] = said.number("sequence_len", default=2048)
    imported.assumed |= {} if "sequence_len" in said else {"sequence_len": 2048}
    options["micro_batch_size"] = said.number("micro_batch_size", default=1)
    options["gradient_accumulation_steps"] = said.number("gradient_accumulation_steps", default=1)
    half = said.flag("bf16", "bfloat16")
    options["precision"] = "bf16" if half else "fp16-amp" if said.flag("fp16", "float16") else "fp32"
    _tf32(said, options)
    options["checkpointing"] = "full" if said.flag("gradient_checkpointing") else "none"
    options["attention"] = "eager" if said.text("attn_implementation") == "eager" else "sdpa"
    said.flag("flash_attention", "sdp_attention", "xformers_attention", "flex_attention")
    options["compile"] = said.flag("torch_compile")
    _method(said, imported, "rl")
    if said.flag("liger_fused_linear_cross_entropy"):
        options["loss"] = "fused"
    if said.flag("adapter"):
        _adapter(said, options)
    sharded = said.first("fsdp", "deepspeed", "fsdp_config", default=None) or said.flag("fsdp_version")
    if sharded:
        stage = re.search(r"zero(\d)", said.text("deepspeed"))
        imported.assumed["gpus"] = options["gpus"] = 8
        options["zero"] = f"zero{stage[1]}" if stage else "zero3"
        beside = deepspeed_beside(said.text("deepspeed"), folder)
        _offload(said, imported)
        if beside:
            imported.assumed.pop("offload", None)
            options.pop("offload", None)
            options |= sharded_by(said.text("deepspeed"), beside)
            imported.unknown += buckets_of(beside, options)
    for ours, theirs in (("tensor", "tensor_parallel_size"), ("context", "context_parallel_size")):
        if said.number(theirs) > 1:
            options[ours] = said.number(theirs)
    imported.unknown += said.unknown(_QUIET)
    return imported


def _method(said: Said, imported: Imported, name: str, *plain: str) -> None:
    """Take what the model learns from: preferences or rewards. Other names than `plain` are not understood."""
    method = said.text(name).lower()
    if method in ("dpo", "grpo"):
        imported.options["method"] = method
    elif method not in (*OFF, *plain):
        imported.unknown.append(f"{name} {method}")


def _offload(said: Said, imported: Imported) -> None:
    """Take what FSDP, or the file that is named for DeepSpeed, keeps in the host's memory."""
    options = imported.options
    if said.flag("fsdp_config.fsdp_offload_params", "fsdp_config.offload_params"):
        options["offload"] = "all"
    if said.flag("fsdp_config.fsdp_activation_checkpointing", "fsdp_config.activation_checkpointing"):
        options["checkpointing"] = "full"
    named = said.text("deepspeed")
    if "offload_params" in named:
        imported.unknown.append(f"that {named} offloads parameters alone")
    elif "offload" in named:
        imported.assumed["offload"] = options["offload"] = "all" if options["zero"] == "zero3" else "optimizer"


def _tf32(said: Said, options: dict[str, Any]) -> None:
    """Take `tf32`, which matters where matmuls are of FP32 numbers."""
    if said.flag("tf32") and options["precision"] == "fp32":
        options["tf32"] = True


def _adapter(said: Said, options: dict[str, Any]) -> None:
    options["lora_rank"] = said.number("lora_r", "peft.r", default=8)
    if "lora_alpha" in said:
        options["lora_alpha"] = float(said.number("lora_alpha"))
    targets = said.first("lora_target_modules", "lora_target_linear")
    if isinstance(targets, list):
        options["lora_targets"] = tuple(map(str, targets))
    elif targets and str(targets).lower() not in ("false", "none"):
        options["lora_targets"] = _LINEAR
    options["lora_dropout"] = said.share("lora_dropout")
    options["dora"] = said.flag("peft_use_dora")
    options |= _saved(said)
    four, eight = said.flag("load_in_4bit"), said.flag("load_in_8bit")
    options["quantize"] = "nf4-dq" if four or said.text("adapter") == "qlora" else "int8" if eight else "none"


def _saved(said: Said) -> dict[str, Any]:
    """Return which modules are trained in full beside the adapters, if any: a list, or a name alone."""
    saved = said.first("lora_modules_to_save", "modules_to_save", "peft.modules_to_save") or []
    names = [saved] if isinstance(saved, str) else saved
    return {"modules_to_save": tuple(map(str, names))} if names else {}


def read_training_arguments(
    given: dict[str, Any], form: str = "TrainingArguments", folder: Path = Path(), quiet: tuple[str, ...] = ()
) -> Imported:
    """Return the run of Hugging Face's `TrainingArguments`, as `to_json_string` writes them, or a script's YAML.

    Args:
        given: names and values.
        form: what they are, in words.
        folder: of the file that they stand in: what they name may lie beside it.
        quiet: patterns of further names that decide neither bytes nor seconds.
    """
    said, factory = Said(given), is_llama_factory(given)
    form = "LLaMA-Factory's YAML" if factory and form == "TrainingArguments" else form
    options: dict[str, Any] = {"engine": "pytorch"}
    imported, beside = Imported(form, None, options), None
    _model(imported, said.text("model_name_or_path", "model"))
    _optimizer(said, imported, "optim")
    options["micro_batch_size"] = said.number("per_device_train_batch_size", default=8)
    options["gradient_accumulation_steps"] = said.number("gradient_accumulation_steps", default=1)
    options["precision"] = "bf16-amp" if said.flag("bf16") else "fp16-amp" if said.flag("fp16") else "fp32"
    _tf32(said, options)
    options["checkpointing"] = "full" if said.flag("gradient_checkpointing") else "none"
    options["compile"] = said.flag("torch_compile")
    _method(said, imported, "rlhf_type" if "rlhf_type" in said else "stage", "sft", "pt")
    seq = said.number("max_seq_length", "max_length", "cutoff_len", "model_max_length")
    options |= {"seq": seq} if seq else {}
    gpus = said.number("world_size", "n_gpu", "_n_gpu")
    sharded = said.text("fsdp", "deepspeed")
    if sharded.strip("[]"):
        beside = deepspeed_beside(sharded, folder)
        stage = re.search(r"z(?:ero)?[_-]?(\d)|stage['\"]?: (\d)", sharded)
        number = (stage[1] or stage[2]) if stage else "3"
        options["zero"] = "none" if number == "0" else f"zero{number}"
        imported.assumed |= {} if gpus else {"gpus": 8}
        gpus = gpus or 8
        if beside:
            options |= sharded_by(sharded, beside)
        else:
            _offload(said, imported)
    elif gpus > 1:
        options["zero"] = "none"  # DistributedDataParallel
    options |= {"gpus": gpus} if gpus else {}
    if factory:
        read_method(said, imported)
    else:
        _model_config(said, options)
    if factory and said.text("deepspeed") and options["precision"].endswith("-amp"):
        # DeepSpeed's weights have 16 bits, beside FP32 masters.
        options |= {"precision": options["precision"].removesuffix("-amp"), "master_weights": True}
    imported.unknown += buckets_of(beside or {}, options)
    imported.unknown += said.unknown((*_QUIET, *quiet, *(FACTORY_QUIET if factory else ())))
    return imported


def _model_config(said: Said, options: dict[str, Any]) -> None:
    """Take what TRL's `ModelConfig` says beside the arguments: the weights' dtype, attention and adapters."""
    low = {"bfloat16": "bf16", "float16": "fp16"}.get(said.text("torch_dtype", "dtype").lower())
    options |= {"precision": low} if low else {}
    options |= {"attention": "eager"} if said.text("attn_implementation") == "eager" else {}
    options |= {"loss": "fused"} if said.flag("use_liger_kernel", "use_liger") else {}
    if said.flag("use_lora", "use_peft", "lora_rank"):
        options["lora_rank"] = said.number("lora_rank", "lora_r", default=16 if said.flag("use_peft") else 8)
        targets = said.first("lora_target_modules")
        names = [targets] if isinstance(targets, str) else targets or []
        options |= {"lora_targets": _LINEAR if names == ["all-linear"] else tuple(names)} if names else {}
        options["lora_dropout"] = said.share("lora_dropout")
        options |= _saved(said)
        options["dora"] = said.flag("use_dora")
        four, eight = said.flag("load_in_4bit"), said.flag("load_in_8bit")
        nested = "nf4-dq" if said.flag("use_bnb_nested_quant") else "nf4"
        options |= {"quantize": nested if four else "int8"} if four or eight else {}


def buckets_of(given: Mapping[str, Any], options: Mapping[str, Any]) -> list[str]:
    """Return the buffers in which DeepSpeed collects gradients, beyond those of a plan, with their bytes, in words."""
    zero = given.get("zero_optimization") or {}
    size = zero.get("reduce_bucket_size")
    if not isinstance(size, int | float) or isinstance(size, bool) or zero.get("contiguous_gradients") is False:
        return []
    both = 2 if zero.get("overlap_comm", zero.get("stage") == 3) and zero.get("stage") != 3 else 1
    planned = bool(options.get("master_weights")) and options.get("zero") in ("zero1", "zero2")
    held = 2 * (both * int(size) - planned * REDUCE_BUCKET)
    if held <= 0:
        return []
    return [f"zero_optimization.reduce_bucket_size (up to {held / GiB:.2f} GiB of buffers that the plan leaves out)"]


def read_accelerate(given: dict[str, Any]) -> Imported:
    """Return the ranks of an Accelerate configuration; it says neither the model nor its batch."""
    said = Said(given)
    kind = said.text("distributed_type", default="NO").upper()
    options: dict[str, Any] = {"engine": "pytorch", "gpus": said.number("num_processes", default=1)}
    imported = Imported("Accelerate's configuration", None, options)
    mixed = said.text("mixed_precision", default="no").lower()
    options["precision"] = {"bf16": "bf16-amp", "fp16": "fp16-amp", "fp8": "fp8"}.get(mixed, "fp32")
    said.number("num_machines")
    if options["gpus"] > 1:
        options["zero"] = "none"
    if kind == "FSDP":
        strategy = said.text("fsdp_config.fsdp_sharding_strategy", default="FULL_SHARD").upper()
        zeros = {"1": "zero3", "2": "zero2", "3": "none", "FULL_SHARD": "zero3", "SHARD_GRAD_OP": "zero2"}
        options["zero"] = zeros.get(strategy, "none" if strategy == "NO_SHARD" else "zero3")
        if said.flag("fsdp_config.fsdp_activation_checkpointing"):
            options["checkpointing"] = "full"
        if said.flag("fsdp_config.fsdp_offload_params"):
            options["offload"] = "all"
    elif kind == "DEEPSPEED":
        options["zero"] = f"zero{said.number('deepspeed_config.zero_stage', default=2)}".replace("zero0", "none")
        options["gradient_accumulation_steps"] = said.number("deepspeed_config.gradient_accumulation_steps", default=1)
        if said.text("deepspeed_config.offload_optimizer_device", default="none") not in ("none", ""):
            everything = said.text("deepspeed_config.offload_param_device", default="none") not in ("none", "")
            options["offload"] = "all" if everything else "optimizer"
    elif kind not in ("NO", "MULTI_GPU", "FP8"):
        imported.unknown.append(f"distributed_type {kind}")
    for ours, theirs in (("tensor", "tp"), ("context", "cp"), ("replicate", "dp_replicate"), ("shard", "dp_shard")):
        size = said.number(f"parallelism_config.parallelism_config_{theirs}_size")
        options |= {ours: size} if size > 1 else {}
    said.flag("use_parallelism_config")
    imported.unknown += said.unknown(_QUIET_ACCELERATE)
    return imported


def read_deepspeed(given: dict[str, Any]) -> Imported:
    """Return the run of DeepSpeed's JSON; what it says `for_your_script` is read, too."""
    said = Said(given)
    stage = said.number("zero_optimization.stage")
    if not 0 <= stage <= 3:
        raise RecipeError(f"zero_optimization.stage is {stage}; DeepSpeed has 0 to 3.")
    half = next((name for name in ("bf16", "fp16") if said.flag(f"{name}.enabled")), "")
    cast = said.text("torch_autocast.dtype") if said.flag("torch_autocast.enabled") else ""
    options: dict[str, Any] = {
        "zero": ("none", "zero1", "zero2", "zero3")[stage],
        "precision": f"{half}-amp" if half else {"bfloat16": "bf16-amp", "float16": "fp16-amp"}.get(cast, "fp32"),
        # DeepSpeed's own masters lie beside 16-bit weights, as Megatron's do.
        "engine": "megatron" if half and stage < 3 else "torchtitan",
        "micro_batch_size": said.number("train_micro_batch_size_per_gpu", default=1),
        "gradient_accumulation_steps": said.number("gradient_accumulation_steps", default=1),
    }
    imported = Imported("DeepSpeed's JSON", None, options)
    batch, own = said.number("train_batch_size"), options["micro_batch_size"] * options["gradient_accumulation_steps"]
    if batch:
        options["gpus"], rest = divmod(batch, own)
        if rest or not options["gpus"]:
            raise RecipeError(f"train_batch_size {batch} is not a multiple of micro-batch x accumulation = {own}.")
    else:
        options["gpus"] = imported.assumed["gpus"] = 8
    for what, device in (("optimizer", "offload_optimizer"), ("all", "offload_param")):
        if said.text(f"zero_optimization.{device}.device", default="none") != "none":
            options |= {"offload": what, "engine": "pytorch"}
    if "for_your_script.model" in said:
        _model(imported, said.text("for_your_script.model"))
        options["seq"] = said.number("for_your_script.seq")
        every = said.number("for_your_script.recompute_every", default=1)
        recompute = said.text("for_your_script.recompute", default="none")
        options["checkpointing"] = f"every-{every}" if recompute == "full" and every > 1 else recompute
        options["attention"] = said.text("for_your_script.attention", default="fused")
        options["compile"] = said.flag("for_your_script.compile")
    imported.unknown += buckets_of(given, options) + said.unknown(_QUIET_DEEPSPEED)
    return imported
