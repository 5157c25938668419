"""Nanotron's YAML: a model by its sizes, ranks of data, tensor, pipeline, context and experts, and ZeRO-1.

Its 16-bit weights stand beside FP32 masters, and gradients are added up in FP32 (`accumulate_grad_in_fp32`), which is
what engine megatron does.
"""

from typing import Any

from ..config import RecipeError
from .said import OFF, Imported, Said

_QUIET = (
    *("checkpoints.*", "data_stages", "general.*", "lighteval", "lighteval.*", "logging.*", "profiler", "profiler.*"),
    *("tokenizer.*", "s3_upload", "s3_upload.*", "metrics_logging", "metrics_logging.*", "model.ddp_bucket_cap_mb"),
    *("model.init_method.*", "optimizer.*", "tokens.*", "experiment_logger.*", "kubernetes.*", "slurm.*"),
    *(f"model.model_config.{name}" for name in ("*_token_id", "initializer_range", "pretraining_tp", "rms_norm_eps")),
    *(f"model.model_config.{name}" for name in ("rope_*", "use_cache", "is_*_config", "_fused_*", "_use_qkv_packed")),
    *(f"model.model_config.{name}" for name in ("z_loss_*", "no_rope_layer", "max_position_*", "interleaved_*")),
    *(
        "model.model_config._attn_implementation",
        "model.model_config.ring_attn_*",
        "parallelism.tp_recompute_allgather",
    ),
    "parallelism.moe_layer_recompute",
)
_OF_OTHER_PARTS = {"is_mamba_config": "state-space layers"}


def is_nanotron(given: dict[str, Any]) -> bool:
    """Return whether a YAML is one of Nanotron's."""
    return isinstance(given.get("parallelism"), dict) and isinstance(given.get("tokens"), dict) and "model" in given


def read_nanotron(given: dict[str, Any]) -> Imported:
    """Return the run of a Nanotron YAML.

    Raises:
        RecipeError: its model is no decoder of attention, or its sizes are missing.
    """
    said = Said(given)
    tensor, stages, data, context = (
        said.number(f"parallelism.{name}", default=1) for name in ("tp", "pp", "dp", "context_parallel_size")
    )
    half = {"bfloat16": "bf16-amp", "float16": "fp16-amp"}.get(said.text("model.dtype", default="bfloat16"), "fp32")
    row: dict[str, Any] = {
        "engine": "megatron",
        "arch": _arch(said),
        "gpus": tensor * stages * data * context,
        "tensor": tensor,
        "pipeline": stages,
        "context": context,
        "expert": said.number("parallelism.expert_parallel_size", default=1),
        "schedule": {"afab": "gpipe"}.get(said.text("parallelism.pp_engine").lower(), "1f1b"),
        "sequence_parallel": said.text("parallelism.tp_mode", default="ALL_REDUCE").upper() == "REDUCE_SCATTER",
        "tensor_overlap": said.flag("parallelism.tp_linear_async_communication") and tensor > 1,
        "zero": "zero1" if said.number("optimizer.zero_stage") else "none",
        "micro_batch_size": said.number("tokens.micro_batch_size", default=1),
        "gradient_accumulation_steps": said.number("tokens.batch_accumulation_per_replica", default=1),
        "seq": said.number("tokens.sequence_length"),
        "precision": half,
        "checkpointing": "full" if said.flag("parallelism.recompute_layer") else "none",
    }
    imported = Imported("Nanotron's YAML", row)
    row["wide_gradients"] = said.text("optimizer.accumulate_grad_in_fp32", default="true").lower() not in OFF
    name = said.text("optimizer.optimizer_factory.name", default="adamW")
    imported.unknown += [] if name.lower() == "adamw" else [f"optimizer {name}"]
    imported.unknown += _of_experts(said, row["arch"]) + said.unknown(_QUIET)
    return imported


def _arch(said: Said) -> dict[str, Any]:
    def size(name: str, default: int = 0) -> int:
        return said.number(f"model.model_config.{name}", default=default)

    for name, words in _OF_OTHER_PARTS.items():
        if said.flag(f"model.model_config.{name}"):
            raise RecipeError(f"{name}: this trains {words}; only decoders are planned.")
    layers, hidden, heads = size("num_hidden_layers"), size("hidden_size"), size("num_attention_heads")
    if not (layers and hidden and heads):
        raise RecipeError("Nanotron's model_config lacks num_hidden_layers, hidden_size or num_attention_heads.")
    gated = said.text("model.model_config.hidden_act", default="silu").lower() in ("silu", "swiglu")
    plain = said.flag("model.model_config.is_starcoder2_config")  # layer norms, biases, and a perceptron without a gate
    multiple = said.number("model.make_vocab_size_divisible_by", default=1)
    multiple *= said.number("parallelism.tp", default=1)
    return {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": size("num_key_value_heads", heads),
        "head_dim": hidden // heads,
        "ffn": size("intermediate_size", 4 * hidden),
        "vocab": -(-size("vocab_size", 49152) // multiple) * multiple,
        "gated": gated and not plain,
        "tied": said.flag("model.model_config.tie_word_embeddings"),
        "bias": said.flag("model.model_config.attention_bias") or plain,
        "layer_norm": plain,
        "positions": 0,
    }


def _of_experts(said: Said, arch: dict[str, Any]) -> list[str]:
    """Take the experts into `arch`, and return what is not understood of them."""
    table, older = "model.model_config.moe_config", "model.model_config"
    experts = said.number(f"{table}.num_experts", f"{older}.moe_num_experts")
    if not experts:
        return []
    width = said.number(f"{table}.moe_intermediate_size", default=arch["ffn"])
    chosen = said.number(f"{table}.top_k", f"{older}.num_experts_per_tok", default=2)
    arch |= {"experts": experts, "experts_per_token": chosen, "moe_ffn": width}
    if not said.flag(f"{table}.enable_shared_expert"):
        return []
    shared, rest = divmod(said.number(f"{table}.shared_expert_intermediate_size", default=width), width)
    arch["shared_experts"] = shared
    return [f"{table}.shared_expert_intermediate_size"] if rest else []
