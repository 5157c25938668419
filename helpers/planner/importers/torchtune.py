"""torchtune's YAML: each part of a recipe is a `_component_`, a function of torchtune, PyTorch or bitsandbytes.

Weights, adapters and gradients have the recipe's `dtype`, and a recipe of several GPUs shards all of them (FSDP2). A
file does not say how many GPUs; the command in its first comment does.
"""

import re
from typing import Any

from ..config import RecipeError
from .names import catalog_name
from .said import Imported, Said

_OPTIMIZERS = {
    "AdamW": "adamw",
    "Adam": "adam",
    "SGD": "sgd",
    "PagedAdamW": "adamw-32bit-paged",
    "PagedAdamW8bit": "adamw-8bit-paged",
    "AdamW8bit": "adamw-8bit",
}
_PERCEPTRON = ("gate_proj", "up_proj", "down_proj")
_QUIET_WORDS = """
    output_dir tokenizer.* checkpointer.* dataset.* dataset_val.* seed shuffle optimizer.* lr_scheduler.* epochs
    max_steps_per_epoch clip_grad_norm metric_logger.* log_* device profiler.* resume_from_checkpoint low_cpu_ram
    save_adapter_weights_only model.* loss.* cudnn_deterministic_mode base_dir name run_val_every_n_steps
    batch_size_val max_validation_batches keep_last_n_checkpoints enable_async_checkpointing dtype *_plan.*
    ref_checkpointer.* collate_fn custom_sharded_layers fsdp_reshard_after_forward num_workers
    parallelize_plan.* dataloader.* datasets kd_* dataset_seed epochs_to_save save_last_epoch_only
"""
_QUIET = tuple(_QUIET_WORDS.split())


def is_torchtune(given: dict[str, Any]) -> bool:
    """Return whether a YAML's model is one of torchtune's components."""
    model = given.get("model")
    return isinstance(model, dict) and "_component_" in model


def read_torchtune(given: dict[str, Any], text: str) -> Imported:
    """Return the run of a torchtune YAML.

    Args:
        given: names and values.
        text: the file, whose comments name the command that starts it.

    Raises:
        RecipeError: it trains nothing.
    """
    if "optimizer" not in given:
        raise RecipeError("This recipe of torchtune has no optimizer: it trains nothing.")
    said = Said(given)
    half = {"bf16": "bf16", "fp16": "fp16"}.get(said.text("dtype", default="fp32"), "fp32")
    options: dict[str, Any] = {
        "engine": "pytorch",
        "micro_batch_size": said.number("batch_size", default=1),
        "gradient_accumulation_steps": said.number("gradient_accumulation_steps", default=1),
        "precision": half,
        "checkpointing": "full" if said.flag("enable_activation_checkpointing") else "none",
        "compile": said.flag("compile"),
    }
    imported = Imported("torchtune's YAML", None, options)
    seq = said.number("tokenizer.max_seq_len")
    options |= {"seq": seq} if seq else {}
    options |= {"step_in_backward": True} if said.flag("optimizer_in_bwd") else {}
    _model(said, imported)
    _optimizer(said, imported)
    _loss(said, imported)
    _ranks(said, imported, text)
    for name in ("quantizer", "teacher_model"):
        if f"{name}._component_" in said:
            imported.unknown.append(f"{name} {_last(said, name)}")
    imported.unknown += said.unknown((*_QUIET, "quantizer.*", "teacher_*"))
    return imported


def _last(said: Said, name: str) -> str:
    return said.text(f"{name}._component_").rpartition(".")[2]


def _model(said: Said, imported: Imported) -> None:
    component, options = said.text("model._component_"), imported.options
    assert options is not None
    *_, family, function = ("", *component.split("."))
    size = re.sub(r"^q?lora_", "", function).removeprefix(family).strip("_").replace("_instruct", "")
    name = re.sub(r"^llama(?=\d)", "llama-", family.replace("_", ".")) + "-" + re.sub(r"(?<=\d)_(?=\d)", ".", size)
    known = catalog_name(name)
    options |= {"model": known} if known else {}
    imported.unknown += [] if known else [f"the sizes of {component.removeprefix('torchtune.models.')}"]
    if not function.startswith(("lora_", "qlora_")):
        return
    targets = [str(target) for target in said.first("model.lora_attn_modules", default=["q_proj", "v_proj"])]
    targets = [{"output_proj": "o_proj"}.get(target, target) for target in targets]
    targets += _PERCEPTRON if said.flag("model.apply_lora_to_mlp") else ()
    targets += ["lm_head"] if said.flag("model.apply_lora_to_output") else []
    options |= {
        "lora_rank": said.number("model.lora_rank", default=8),
        "lora_alpha": said.share("model.lora_alpha", 16.0),
        "lora_targets": tuple(targets),
        "lora_dropout": said.share("model.lora_dropout"),
        "lora_dtype": "weights",
    }
    options |= {"dora": True} if said.flag("model.use_dora") else {}
    quantized = function.startswith("qlora_") or said.flag("model.quantize_base")
    options |= {"quantize": "nf4-dq"} if quantized else {}  # torchao's NF4 stores its scales as integers, too


def _optimizer(said: Said, imported: Imported) -> None:
    name, options = _last(said, "optimizer"), imported.options
    assert options is not None
    if name in _OPTIMIZERS:
        options["optimizer"] = _OPTIMIZERS[name]
        options["optimizer_impl"] = "fused" if said.flag("optimizer.fused") else "foreach"
    elif name:
        imported.unknown.append(f"optimizer {name}")


def _loss(said: Said, imported: Imported) -> None:
    name, options = _last(said, "loss"), imported.options
    assert options is not None
    if name == "LinearCrossEntropyLoss":  # the last matmul and its loss, some tokens at a time
        options["loss"] = "chunked"
    elif name == "DPOLoss":
        options["method"] = "dpo"
    elif name not in ("", "CEWithChunkedOutputLoss", "CrossEntropyLoss"):
        imported.unknown.append(f"loss {name}")
    if said.flag("enable_activation_offloading"):
        imported.unknown.append("enable_activation_offloading")


def _ranks(said: Said, imported: Imported, text: str) -> None:
    options = imported.options
    assert options is not None
    started = re.search(r"^#.*tune run .*--nproc[-_]per[-_]node[ =](\d+)", text, re.MULTILINE)
    names = {"tensor": "tensor_parallel_dim", "context": "context_parallel_dim"}
    ranks = {ours: size for ours, theirs in names.items() if (size := said.number(theirs, default=1)) > 1}
    replicate = said.number("data_parallel_replicate_dim", default=1)
    offloads = said.flag("fsdp_cpu_offload")
    if not (started or ranks or offloads):
        return
    options |= ranks | {"zero": "zero3", "gpus": int(started[1]) if started else 8}
    imported.assumed["gpus"] = options["gpus"]
    options |= {"replicate": replicate} if replicate > 1 else {}
    options |= {"offload": "all"} if offloads else {}
