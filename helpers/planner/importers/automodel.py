"""NeMo Automodel's YAML: a Hugging Face model by name, or its config, trained by FSDP2 with the usual other ranks."""

import re
from typing import Any

from .names import catalog_name
from .said import OFF, Imported, Said

_RANKS = {"tensor": "tp_size", "pipeline": "pp_size", "context": "cp_size", "expert": "ep_size"}
_SCHEDULES = {"interleaved1f1b": "interleaved", "1f1b": "1f1b", "gpipe": "gpipe", "zbvzerobubble": "zero-bubble"}
_QUIET_WORDS = """
    recipe recipe.* step_scheduler.* dist_env.* rng.* model.* loss_fn.* dataset.* dataloader.* *validation_*
    packed_sequence.* optimizer.* lr_scheduler.* wandb.* mlflow.* comet.* ci.* checkpoint.* peft.* tokenizer.*
    processor.* logger.* clip_grad_norm.* max_grad_norm seed distributed.* benchmark.* nvtx compile.* freeze*
    training.* teacher_* kd_* skypilot.* moe_metrics.* fp8.* quantization.* distributed_config.* parallelizer.*
    defer_* profiling.* metrics* autopipeline.* slurm.*
"""
_QUIET = tuple(_QUIET_WORDS.split())
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_EVERYWHERE = (*_ATTENTION, "gate_proj", "up_proj", "down_proj")
_LOW = {"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16-amp", "float32": "bf16-amp", "fp32": "bf16-amp"}


def is_automodel(given: dict[str, Any]) -> bool:
    """Return whether a YAML is one of NeMo Automodel's recipes."""
    model = given.get("model")
    return "step_scheduler" in given and isinstance(model, dict) and "distributed" in given


def read_automodel(given: dict[str, Any]) -> Imported:
    """Return the run of a NeMo Automodel YAML."""
    said = Said(given)
    name = said.text(
        *("model.pretrained_model_name_or_path", "model.config.pretrained_model_name_or_path"),
        *("model.config.name_or_path", "model.config"),
    )
    known, eight = catalog_name(name), said.flag("fp8.enabled", "fp8.enable_fp8", "model.backend.te_fp8.recipe")
    row: dict[str, Any] = {
        "framework": "automodel",
        **({"model": known} if known else {}),
        "micro_batch_size": said.number("step_scheduler.local_batch_size", default=1),
        "global_batch_size": said.number("step_scheduler.global_batch_size") or None,
        "precision": "fp8" if eight else _precision(said),
        "checkpointing": "full" if said.flag("distributed.activation_checkpointing") else "none",
        "compile": said.flag("compile.enabled"),
        **{ours: max(1, said.number(f"distributed.{theirs}", default=1)) for ours, theirs in _RANKS.items()},
    }
    seq = said.number(
        *("packed_sequence.packed_sequence_size", "dataset.seq_len", "dataset.seq_length", "dataset.max_length"),
        "dataset.max_seq_length",
    )
    row |= {"seq": seq} if seq else {}
    imported = Imported("NeMo Automodel's YAML", row)
    imported.unknown += [] if known else [f"the sizes of {name or said.text('model._target_')}"]
    _gpus(said, imported)
    _strategy(said, imported)
    imported.unknown += ["teacher_model"] if said.flag("teacher_model._target_") else []
    imported.unknown += said.unknown(_QUIET)
    return _with_adapters(said, imported) if said.flag("peft._target_", "peft.dim") else imported


def _precision(said: Said) -> str:
    named = said.text("model.torch_dtype", "model.dtype", "model.config.torch_dtype", default="bfloat16")
    return _LOW.get(named.removeprefix("torch.").lower(), "bf16")


def _gpus(said: Said, imported: Imported) -> None:
    """Take as few nodes of eight GPUs as the ranks need, or fewer GPUs where these would not share the batch evenly."""
    row = imported.row
    assert row is not None
    replicate = max(1, said.number("distributed.dp_replicate_size", default=1))
    shares = max(1, said.number("distributed.dp_size", default=1))
    ranks = row["tensor"] * row["pipeline"] * row["context"]
    least = max(ranks * shares * replicate, row["expert"] * row["pipeline"])
    row["gpus"] = imported.assumed["gpus"] = -(-least // 8) * 8
    row |= {"replicate": replicate} if replicate > 1 else {}
    batch = row["global_batch_size"]
    if row["pipeline"] > 1:
        size = said.number("distributed.pipeline.pp_microbatch_size", "distributed.pp_microbatch_size", default=1)
        row["gradient_accumulation_steps"] = max(1, row["micro_batch_size"] // size)
        row |= {"micro_batch_size": size, "global_batch_size": None}
        named = said.text("distributed.pipeline.pp_schedule", "distributed.pp_schedule", default="1f1b").lower()
        row["schedule"] = _SCHEDULES.get(re.sub(r"[^a-z0-9]", "", named), named)
    elif batch:
        shares = row["gpus"] // ranks
        least = max(1, row["expert"] * row["pipeline"] // ranks)
        while shares > least and batch % (row["micro_batch_size"] * shares):
            shares -= 1
        row["gpus"] = imported.assumed["gpus"] = ranks * shares


def _strategy(said: Said, imported: Imported) -> None:
    row, named = imported.row, said.text("distributed.strategy", "distributed._target_", default="fsdp2")
    assert row is not None
    if "ddp" in named.lower() and "fsdp" not in named.lower():
        row["zero"] = "none"
    elif "fsdp2" not in named.lower():
        imported.unknown.append(f"distributed.strategy {named.rpartition('.')[2]}")
    if said.text("distributed.sequence_parallel").lower() in ("false", *OFF[1:]):
        row["sequence_parallel"] = False
    if said.flag("distributed.offload_policy", "distributed.cpu_offload"):
        imported.unknown.append("distributed.offload_policy")


def _with_adapters(said: Said, imported: Imported) -> Imported:
    """Return the run as options of a PyTorch loop, whose base is frozen and may have few bits."""
    row = imported.row
    assert row is not None
    imported.unknown += ["distributed.ep_size (experts beside adapters)"] if row["expert"] > 1 else []
    targets = str(said.first("peft.target_modules", default="*_proj"))
    everywhere = re.search(r"\*_?proj|all|gate|up_proj|fc", targets)
    four, eight = (said.flag(f"quantization.load_in_{bits}bit") for bits in (4, 8))
    options = {name: value for name, value in row.items() if name not in ("framework", "expert") and value != 1}
    batch, steps = options.pop("global_batch_size", None), options.pop("gradient_accumulation_steps", 1)
    share = row["micro_batch_size"] * row["gpus"] // (row["tensor"] * row["pipeline"] * row["context"])
    options |= {
        "engine": "pytorch",
        "zero": row.get("zero", "zero3"),
        "micro_batch_size": row["micro_batch_size"],
        "gradient_accumulation_steps": batch // share if batch else steps,
        "lora_rank": said.number("peft.dim", default=8),
        "lora_targets": _EVERYWHERE if everywhere else _ATTENTION,
        "lora_dropout": said.share("peft.dropout"),
        "lora_dtype": "weights",
        "quantize": "nf4" if four else "int8" if eight else "none",
    }
    return Imported(imported.form, None, options, imported.unknown, imported.assumed)
