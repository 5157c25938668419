"""NeMo's YAML and Megatron Bridge's overrides: Megatron's options under other names, read as its arguments."""

import re
from typing import Any

from ..config import RecipeError
from .megatron import QUIET, row_of
from .said import Imported, Said

# NeMo's name -> Megatron's argument. NeMo's own file is nested; `model.` is left out here.
NAMES = {
    "num_layers": "num-layers",
    "hidden_size": "hidden-size",
    "ffn_hidden_size": "ffn-hidden-size",
    "num_attention_heads": "num-attention-heads",
    "kv_channels": "kv-channels",
    "num_query_groups": "num-query-groups",
    "vocab_size": "vocab-size",
    "max_position_embeddings": "max-position-embeddings",
    "normalization": "normalization",
    "micro_batch_size": "micro-batch-size",
    "global_batch_size": "global-batch-size",
    "tensor_model_parallel_size": "tensor-model-parallel-size",
    "pipeline_model_parallel_size": "pipeline-model-parallel-size",
    "virtual_pipeline_model_parallel_size": "num-virtual-stages-per-pipeline-rank",
    "pipeline_model_parallel_layout": "pipeline-model-parallel-layout",
    "context_parallel_size": "context-parallel-size",
    "cp_comm_type": "cp-comm-type",
    "expert_model_parallel_size": "expert-model-parallel-size",
    "num_moe_experts": "num-experts",
    "moe_router_topk": "moe-router-topk",
    "moe_ffn_hidden_size": "moe-ffn-hidden-size",
    "moe_shared_expert_intermediate_size": "moe-shared-expert-intermediate-size",
    "hidden_dropout": "hidden-dropout",
    "expert_tensor_parallel_size": "expert-tensor-parallel-size",
    "make_vocab_size_divisible_by": "make-vocab-size-divisible-by",
    "num_layers_in_first_pipeline_stage": "decoder-first-pipeline-num-layers",
    "num_layers_in_last_pipeline_stage": "decoder-last-pipeline-num-layers",
}
_FLAGS = {
    "sequence_parallel": "sequence-parallel",
    "ub_tp_comm_overlap": "tp-comm-overlap",
    "tp_comm_overlap": "tp-comm-overlap",
    "qk_layernorm": "qk-layernorm",
    "enable_cuda_graph": "enable-cuda-graph",
    "account_for_embedding_in_pipeline_split": "account-for-embedding-in-pipeline-split",
    "account_for_loss_in_pipeline_split": "account-for-loss-in-pipeline-split",
}
_QUIET_WORDS = """
    run.* exp_manager.* trainer.* hydra.* defaults cluster* logger.* checkpoint.* scheduler.* rng.* tokenizer.*
    dataset.* train.* optimizer.* ddp.* name restore_from_path data.* optim.* nsys_profile.* *init_method*
    *seed* native_* hysteresis
    attention_dropout *epsilon* persist_layer_norm pre_process post_process *fusion* *_data_*
    apply_query_key_layer_scaling
    gradient_as_bucket_view grad_allreduce_chunk_size_mb resume_from_checkpoint onnx_safe apex_* sync_batch_comm
    use_cpu_initialization gc_interval sharp mcore_gpt transformer_engine megatron_amp_O2 fp8_* batch_p2p_comm
    overlap_p2p_comm rotary_* openai_gelu encoder_seq_length num_micro_batches_with_partial_activation_checkpoints
    activations_checkpoint_* recompute_method recompute_num_layers moe_grouped_gemm
    moe_token_dispatcher_type should_pad_vocab fp16_lm_cross_entropy fp32_residual_connection reduce_amax
    use_emha headscale transformer_block_type position_embedding_type bias activation activation_func ffn_*
    share_* *_type
    activation_checkpoint* fsdp_* ub_tp_comm_overlap_cfg*
"""
QUIET_WORDS = tuple(_QUIET_WORDS.split())


def read_nemo(given: dict[str, Any], form: str, gpus: int = 0, gpu: str = "") -> Imported:
    """Return the run of a NeMo YAML, or of a Megatron Bridge configuration, on these GPUs unless it names others.

    Raises:
        RecipeError: sizes are missing.
    """
    given = given.get("training", given) if isinstance(given.get("training"), dict) else given
    model = given.get("model") or {}
    if not isinstance(model, dict) or "num_layers" not in model:
        raise RecipeError("NeMo's model.num_layers is missing: a model's sizes are its layers, width and heads.")
    inner = {f"{name}.{key}": v for name in ("train", "trainer", "ddp") for key, v in (given.get(name) or {}).items()}
    said = Said(model | inner | {"mixed_precision": given.get("mixed_precision")})
    arguments: dict[str, Any] = {}
    for name, argument in NAMES.items():
        value = said.first(name, f"train.{name}")
        value = _product(value, model)
        if value is not None and "$" not in str(value):
            arguments[argument] = str(value).strip("'")
    arguments |= {argument: "true" for name, argument in _FLAGS.items() if said.flag(name)}
    arguments |= _spelled(said) | _mixed_blocks(said)
    arguments["moe-token-dispatcher-type"] = "alltoall"  # of its recipes
    gpus = said.number("trainer.num_nodes", default=1) * said.number("trainer.devices", default=0) or gpus
    row, unknown = row_of(arguments, gpus or _least(arguments), gpu)
    row["framework"] = "nemo"
    assumed = {} if gpus else {"gpus": row["gpus"]}
    return Imported(form, row, None, sorted({*said.unknown(QUIET_WORDS), *unknown} - set(QUIET)), assumed)


def _mixed_blocks(said: Said) -> dict[str, str]:
    """Return which blocks have experts, as Megatron spells it."""
    blocks = re.findall(r"[01]", said.text("moe_layer_freq")) if "moe_layer_freq" in said else []
    if len(blocks) < 2:  # every block, or none
        return {}
    dense = "".join(blocks).find("1")
    return {"moe-layer-freq": f"([0]*{dense}+[1]*{len(blocks) - dense})" if dense > 0 else f"([1]*{len(blocks)})"}


def _product(value: Any, model: dict[str, Any]) -> Any:
    """Return what `${multiply:4, ${.hidden_size}}` stands for."""
    text = str(value)
    if text.startswith("${multiply:"):
        times, _, name = text.removeprefix("${multiply:").rstrip("}").partition(",")
        other = model.get(name.strip(" ${}").rpartition(".")[2])
        return int(times) * int(other) if times.isdecimal() and str(other).isdecimal() else None
    return value


def _spelled(said: Said) -> dict[str, str]:
    """Return the arguments whose values have other words."""
    precision = (said.text("mixed_precision") or said.text("trainer.precision", "precision")).lower()
    fp8 = said.flag("fp8") or "fp8" in precision
    sixteen = "fp16" if "16" in precision and "bf16" not in precision else "bf16" if "bf16" in precision else ""
    recompute = said.text("activations_checkpoint_granularity", "recompute_granularity").lower()
    gated = said.flag("gated_linear_unit") or "swiglu" in said.text("activation")
    sharded = "distributed" in said.text("optim.name") or said.flag("ddp.use_distributed_optimizer")
    seq = said.number("encoder_seq_length", "seq_length", "data.seq_length")
    rotates = said.text("position_embedding_type", default="learned_absolute")
    tied = said.flag("share_embeddings_and_output_weights")
    overlaps = said.flag("ddp.overlap_grad_reduce") or "ddp.overlap_grad_reduce" not in said  # NeMo's default
    return {
        **({"overlap-grad-reduce": "true"} if overlaps else {}),
        **({sixteen: "true"} if sixteen else {}),
        **({"fp8-format": "hybrid"} if fp8 else {}),
        **({"recompute-granularity": recompute} if recompute not in ("", "none", "null") else {}),
        **({"swiglu": "true"} if gated else {}),
        **({"use-distributed-optimizer": "true"} if sharded else {}),
        **({} if tied else {"untie-embeddings-and-output-weights": "true"}),
        **({} if said.flag("bias", "add_bias_linear") else {"disable-bias-linear": "true"}),
        **({"group-query-attention": "true"} if "num_query_groups" in said else {}),
        "normalization": "RMSNorm" if "rms" in said.text("normalization").lower() else "LayerNorm",
        "position-embedding-type": rotates,
        "seq-length": str(seq or 4096),
        "tokenizer-type": said.text("tokenizer.type", default="GPT2BPETokenizer"),
        "tokenizer-model": said.text("tokenizer.model", "tokenizer.type"),
        "no-create-attention-mask-in-dataloader": "true",
        "accumulate-allreduce-grads-in-fp32": "true",
        "num-distributed-optimizer-instances": said.text("ddp.num_distributed_optimizer_instances", default="1"),
        **({"make-vocab-size-divisible-by": "1"} if said.text("should_pad_vocab").lower() == "false" else {}),
    }


def _least(arguments: dict[str, Any]) -> int:
    """Return the fewest GPUs, in nodes of eight, that the ranks of the model need."""
    names = ("tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size")
    ranks = 1
    for name in names:
        ranks *= int(arguments.get(name, 1))
    return -(-ranks // 8) * 8
