"""LLM Foundry's YAML: MPT models by their sizes, or Hugging Face's by name, trained by Composer with FSDP."""

from typing import Any

from .names import catalog_name
from .said import OFF, Imported, Said

_QUIET_WORDS = """
    variables.* run_name model.* tokenizer.* train_loader.* eval_loader* scheduler.* optimizer.* algorithms.*
    max_duration eval_* seed device_eval_batch_size fsdp_config.* progress_bar log_* console_* callbacks.* loggers.*
    save_* load_* icl_* python_log_level autoresume dist_timeout global_seed max_split_size_mb expandable_segments
    only_* metadata.* data_local data_remote device_train_grad_accum precision cluster image integrations* command
    gpu_type compute.* profiler.* remote_* variables
"""
_QUIET = tuple(_QUIET_WORDS.split())


def is_llm_foundry(given: dict[str, Any]) -> bool:
    """Return whether a YAML is one of LLM Foundry's training runs."""
    model = given.get("model")
    return isinstance(model, dict) and "name" in model and "global_train_batch_size" in given


def read_llm_foundry(given: dict[str, Any]) -> Imported:
    """Return the run of an LLM Foundry YAML."""
    said = Said(given)
    mixed = said.text("precision", default="amp_bf16").lower()
    pure = said.text("fsdp_config.mixed_precision", default="PURE").upper()
    row: dict[str, Any] = {
        "framework": "llm-foundry",
        "seq": said.number("max_seq_len", "model.max_seq_len", default=2048),
        "precision": "fp8" if "fp8" in mixed else "fp32" if mixed == "fp32" else "bf16-amp",
        "checkpointing": "full" if said.flag("fsdp_config.activation_checkpointing") else "none",
    }
    imported = Imported("LLM Foundry's YAML", row)
    imported.unknown += [] if pure in ("PURE", "DEFAULT") else [f"fsdp_config.mixed_precision {pure}"]
    _model(said, imported)
    size = said.number("device_train_microbatch_size", default=1)
    if "device_train_microbatch_size" not in said or not said.number("device_train_microbatch_size"):
        imported.assumed["micro_batch_size"] = size
    row |= {"micro_batch_size": size, "gpus": 8}
    batch = said.number("global_train_batch_size")
    row |= {"global_batch_size": batch} if batch and not batch % (size * 8) else {}
    imported.assumed["gpus"] = 8
    sharded = said.text("fsdp_config.sharding_strategy", default="FULL_SHARD" if "fsdp_config" in given else "")
    zeros = {"FULL_SHARD": "zero3", "SHARD_GRAD_OP": "zero2", "HYBRID_SHARD": "zero3", "": "none", "NO_SHARD": "none"}
    row["zero"] = zeros.get(sharded.upper(), "zero3")
    for name in ("activation_cpu_offload", "cpu_offload"):
        imported.unknown += [f"fsdp_config.{name}"] if said.flag(f"fsdp_config.{name}") else []
    imported.unknown += said.unknown(_QUIET)
    return imported


def _model(said: Said, imported: Imported) -> None:
    row = imported.row
    assert row is not None
    hidden, layers, heads = (said.number(f"model.{name}") for name in ("d_model", "n_layers", "n_heads"))
    if hidden and layers and heads:
        plain = said.text("model.no_bias", default="false").lower() in OFF
        ratio = said.share("model.expansion_ratio", 4.0)
        rotates = said.flag("model.attn_config.rope", "model.attn_config.alibi")
        row["arch"] = {
            "layers": layers,
            "hidden": hidden,
            "heads": heads,
            "kv_heads": said.number("model.attn_config.kv_n_heads", default=heads),
            "ffn": int(hidden * ratio),
            "vocab": said.number("model.vocab_size", default=50368),
            "gated": False,
            "tied": said.text("model.tie_word_embeddings", default="true").lower() not in OFF,
            "bias": plain,
            "layer_norm": True,
            "positions": 0 if rotates else said.number("model.max_seq_len", default=row["seq"]),
        }
        return
    name = said.text("model.pretrained_model_name_or_path", "model.name")
    known = catalog_name(name)
    row |= {"model": known} if known else {}
    imported.unknown += [] if known else [f"the sizes of {name}"]
