"""Megatron-LM's arguments, read as a row of `plan --rows`.

An argument decides bytes, and becomes a field of the row; or it does not (`QUIET`); or it is not understood, and is
named. `tests/planner/megatron_golden.py` plans Megatron-LM's own functional tests by it.
"""

import re
from collections.abc import Mapping
from typing import Any

from ..config import RecipeError
from .megatron_arch import ASSUMED_WORDS, arch_of_arguments, vocabulary_of
from .said import Said

# Data, logs, checkpoints, learning rates: neither the tensors of a step nor their sizes depend on them.
_QUIET_WORDS = """
    apply-query-key-layer-scaling async-ckpt-use-cpu-shm async-save async-strategy attention-softmax-in-fp32
    calculate-per-token-loss check-weight-hash-across-dp-replicas-interval ckpt-format clip-grad data-cache-path
    data-path ddp-average-in-collective decoupled-lr decoupled-min-lr disable-gloo-process-groups dist-ckpt-strictness
    distributed-backend eval-interval eval-iters fim-data fim-rate fim-spm-rate finetune load log-interval
    log-memory-to-tensorboard log-num-zeros-in-grad log-params-norm log-timers-to-tensorboard
    log-validation-ppl-to-tensorboard logging-level lr lr-decay-iters lr-decay-style lr-warmup-fraction manual-gc
    manual-gc-interval merge-file merges-file min-lr mock-data no-check-for-nan-in-loss-and-grad
    no-ckpt-fully-parallel-save no-persist-layer-norm no-rope-fusion norm-epsilon
    overlap-p2p-communication-warmup-flush overlap-param-gather rotary-base rotary-interleaved
    rotary-percent save save-interval split tensorboard-dir test-mode timing-log-level tokenizer-model tokenizer-type
    train-iters use-checkpoint-opt_param-scheduler use-mcore-models use-persistent-ckpt-worker use-tp-pp-dp-mapping
    verify-integrity vocab-file weight-decay wgrad-deferral-limit attention-dropout recompute-method
    recompute-num-layers moe-aux-loss-coeff moe-router-load-balancing-type
    no-bias-gelu-fusion init-method-std adam-beta1 adam-beta2 adam-eps tensorboard-* wandb-* log-* save-* eval-*
    lr-* ckpt-* data-* exit-* num-workers seed train-samples distributed-timeout-minutes no-load-* no-save-* wgrad-*
    use-checkpoint-* dist-ckpt-* rerun-mode no-mmap-bin-files auto-detect-ckpt-format max-position-embeddings
    moe-router-dtype moe-permute-fusion empty-unused-memory-level tiktoken-*
    use-mcore-models use-rope-scaling rope-scaling-factor
    tokenizer-* dataloader-type async-* profile* initial-loss-scale cross-entropy-fusion-impl
    transformer-impl use-flash-attn override-opt-param-scheduler override-opt_param-scheduler error-injection-* use-mup
    mup-* vocab-extra-ids mask-prob short-seq-prob mtp-loss-scaling-factor
"""
QUIET = frozenset(_QUIET_WORDS.split())
_LAUNCHERS = (
    "nproc-per-node",
    "nnodes",
    "node-rank",
    "master-addr",
    "master-port",
    "rdzv-*",
    "standalone",
    "max-restarts",
)


def row_of(given: Mapping[str, Any], gpus: int, gpu: str) -> tuple[dict[str, Any], list[str]]:
    """Return the row of a run of Megatron-LM with these arguments, and those that are not understood.

    Raises:
        RecipeError: sizes are missing, or are no numbers.
    """
    said = Said({str(name).lstrip("-").replace("_", "-"): value for name, value in given.items()})
    if "hybrid-layer-pattern" in said:
        raise RecipeError("--hybrid-layer-pattern: this trains state-space layers, which are not planned.")
    layers = "decoder-num-layers" if "encoder-num-layers" in said else "num-layers"
    for name in (layers, "hidden-size", "num-attention-heads"):
        if name not in said:
            raise RecipeError(f"--{name} is missing: a model's sizes are its layers, width and heads.")
    row = {"framework": "megatron-lm", "arch": arch_of_arguments(said), "gpu": gpu, "gpus": gpus}
    row |= ranks_of(said, row["arch"]["layers"]) | step_of(said)
    dispatch = _dispatch(said, row)  # a dense model may say it, too
    unknown = said.unknown([*QUIET, *_LAUNCHERS])
    if set(re.findall(r"\w+", said.text("recompute-modules"))) - {"core_attn"}:
        unknown.append(f"recompute-modules {said.text('recompute-modules')}")
    if row["arch"]["masked"] or row["arch"]["encoder_layers"]:
        if row["transformer_impl"] != "local":
            row["attention_mask"] = False  # of (B, S), but for Megatron's own layers
        if row["tensor"] > 1:
            unknown.append("what else BERT and T5 hold on tensor ranks (published peaks are up to 1.8% higher)")
    if not (said.number("vocab-size") or vocabulary_of(said)):
        unknown.append(f"how many tokens {said.text('tokenizer-type')} has ({ASSUMED_WORDS:,} are assumed)")
    if row["arch"].get("experts"):
        unknown += dispatch.pop("unknown")
        row["sequence_parallel"] |= row["tensor"] > 1
        row |= dispatch
    return row, unknown


def _dispatch(said: Said, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return how tokens come to experts, with what is `unknown` of it."""
    kind = said.text("moe-token-dispatcher-type", default="allgather")
    split = said.number("expert-tensor-parallel-size", default=row["tensor"])
    grouped = said.flag("moe-grouped-gemm") and row["transformer_impl"] != "local"
    if kind == "allgather" and not row["arch"].get("shared_experts") and not row["arch"]["bias"]:
        return {"dispatcher": kind, "expert_tensor": split, "grouped_experts": grouped, "unknown": []}
    return {"unknown": [f"expert-tensor-parallel-size {split}: experts are planned whole"] if split > 1 else []}


def ranks_of(said: Said, layers: int) -> dict[str, Any]:
    """Return the fields of a row that are about ranks.

    Raises:
        RecipeError: stages do not hold equal shares of the `layers`.
    """
    names = {"tensor": "tensor-model-parallel-size", "pipeline": "pipeline-model-parallel-size"}
    names |= {"context": "context-parallel-size"}
    ranks = {name: said.number(argument, default=1) for name, argument in names.items()}
    per_stage = said.number("num-layers-per-virtual-pipeline-stage")
    stages = said.number("num-virtual-stages-per-pipeline-rank", default=1)
    stages = layers // ranks["pipeline"] // per_stage if per_stage else stages
    named = said.text("pipeline-model-parallel-layout")
    sizes = _named_stages(named) if named else _uneven_stages(said, layers, ranks["pipeline"], stages)
    if named:
        stages = len(sizes) // ranks["pipeline"]
    instances = said.number("num-distributed-optimizer-instances", default=1)
    return {
        **ranks,
        "context_method": {"a2a": "all-to-all"}.get(said.text("cp-comm-type"), "ring"),
        "expert": said.number("expert-model-parallel-size", default=1),
        "tensor_overlap": said.flag("tp-comm-overlap"),
        "data_overlap": said.flag("overlap-grad-reduce"),
        "sequence_parallel": said.flag("sequence-parallel") and ranks["tensor"] > 1,
        "virtual_stages": stages,
        **({"stage_sizes": sizes} if sizes else {}),
        "micro_batch_group": said.number("microbatch-group-size-per-virtual-pipeline-stage"),
        "reshard_after_forward": True,
        "zero": "zero1" if said.flag("use-distributed-optimizer") else "none",
        **({"replicate": instances} if instances > 1 else {}),
    }


def _named_stages(named: str) -> list[int]:
    """Return the blocks of each stage of a layout like "Et*3|(t*3|)*2t*2L".

    Raises:
        RecipeError: it has other parts, or the embedding and the loss are not at its ends.
    """
    plain = re.sub(r"\(([^()]*)\)\*(\d{1,3})(?!\d)", lambda found: found[1] * int(found[2]), named.replace(",", ""))
    plain = re.sub(r"(\w)\*(\d{1,3})(?!\d)", lambda found: found[1] * int(found[2]), plain)
    if not re.fullmatch(r"E[t|]*m*L", plain):
        raise RecipeError(
            f"--pipeline-model-parallel-layout {named}: it must go from E over t and | to L, with m beside L if at all."
        )
    return [stage.count("t") for stage in plain.split("|")]


def _uneven_stages(said: Said, layers: int, ranks: int, turns: int) -> list[int]:
    """Return the blocks of each stage where the first and the last rank have their own number; [] where none has.

    Raises:
        RecipeError: the other ranks cannot share the rest.
    """
    ends = [said.number(f"decoder-{end}-pipeline-num-layers") for end in ("first", "last")]
    counts = [said.flag(f"account-for-{end}-in-pipeline-split") for end in ("embedding", "loss")]
    if ranks < 2:
        return []
    if any(counts):  # the embedding and the loss count as blocks
        each, rest = divmod(layers + sum(counts), ranks * turns)
        sizes = [each] * (ranks * turns)
        sizes[0], sizes[-1] = each - counts[0], each - counts[1]
    elif any(ends):
        between = ranks - sum(end > 0 for end in ends)
        each, rest = divmod(layers - sum(ends), max(1, between * turns))
        by_rank = [ends[0] or each * turns] + [each * turns] * (ranks - 2) + [ends[1] or each * turns]
        rest += sum(size % turns for size in by_rank)
        sizes = [size // turns for size in by_rank] * turns
    else:
        return []
    if rest:
        raise RecipeError(f"{layers} layers cannot be divided among {ranks} ranks as the arguments for the ends say.")
    return sizes


def step_of(said: Said) -> dict[str, Any]:
    """Return the fields of a row that are about a step: its batch, numbers, recomputation and kernels.

    Raises:
        RecipeError: some blocks are recomputed together, or a fused loss is an unknown one.
    """
    _check_recomputed(said)
    sixteen = "bf16-amp" if said.flag("bf16") else "fp16-amp" if said.flag("fp16") else "fp32"
    eight = "fp8-format" in said or "fp8" in said
    local = "local" in (said.text("transformer-impl"), said.text("spec"))
    attention = said.text("attention-backend", default="fused").replace("auto", "fused")
    deferred = said.flag("defer-embedding-wgrad-compute")
    wide = said.flag("accumulate-allreduce-grads-in-fp32") or not said.flag("fp16")
    return {
        "micro_batch_size": said.number("micro-batch-size", default=1),
        "global_batch_size": said.number("global-batch-size") or None,
        "seq": said.number("seq-length", "encoder-seq-length"),
        "target_seq": said.number("decoder-seq-length"),
        "precision": "fp8" if eight else sixteen,
        "checkpointing": "none" if _spares_attention(said) else said.text("recompute-granularity", default="none"),
        "attention": "unfused" if local else attention,
        "transformer_impl": "local" if local else "transformer_engine",
        "fused_loss": said.flag("cross-entropy-loss-fusion") and _implementation(said),
        "dropout": said.share("hidden-dropout", 0.1),
        "attention_mask": not said.flag("no-create-attention-mask-in-dataloader"),
        "cuda_graphs": said.flag("enable-cuda-graph"),
        "deterministic": said.flag("deterministic-mode"),
        "wgrad_fusion": not said.flag("no-gradient-accumulation-fusion"),
        "softmax_fusion": not said.flag("no-masked-softmax-fusion"),
        "wide_gradients": wide,
        "deferred_logits": (said.number("wgrad-deferral-limit") or -1) if deferred else 0,
    }


def _spares_attention(said: Said) -> bool:
    """Return whether what is recomputed is named, and attention is not among it."""
    modules = said.text("recompute-modules")
    return said.text("recompute-granularity") == "selective" and bool(modules) and "core_attn" not in modules


def _implementation(said: Said) -> str:
    """Return whose fused loss it is.

    Raises:
        RecipeError: it is an unknown one.
    """
    which = said.text("cross-entropy-fusion-impl", default="native")
    if which not in ("native", "te"):
        raise RecipeError(f"--cross-entropy-fusion-impl {which}: the bytes of that loss are unknown.")
    return which


def _check_recomputed(said: Said) -> None:
    """Check that recomputed are all blocks or none.

    Raises:
        RecipeError: some blocks are recomputed together, or not at all.
    """
    method, together = said.text("recompute-method", default="uniform"), said.number("recompute-num-layers", default=1)
    if said.text("recompute-granularity") == "full" and (method, together) != ("uniform", 1):
        raise RecipeError("Blocks must be recomputed one by one: --recompute-method uniform, 1 layer at a time.")
