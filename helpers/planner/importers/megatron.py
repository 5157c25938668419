"""Megatron-LM's arguments, read as a row of `plan --rows`.

An argument decides bytes, and becomes a field of the row; or it does not (`QUIET`); or it is not understood, and is
named. `tests/planner/megatron_golden.py` plans Megatron-LM's own functional tests by it.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from ..config import RecipeError

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
    overlap-grad-reduce overlap-p2p-communication-warmup-flush overlap-param-gather rotary-base rotary-interleaved
    rotary-percent save save-interval split tensorboard-dir test-mode timing-log-level tokenizer-model tokenizer-type
    train-iters use-checkpoint-opt_param-scheduler use-mcore-models use-persistent-ckpt-worker use-tp-pp-dp-mapping
    verify-integrity vocab-file weight-decay wgrad-deferral-limit expert-tensor-parallel-size
"""
QUIET = frozenset(_QUIET_WORDS.split())
VOCABULARIES = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000}


class Arguments:
    """Arguments by name, without dashes before it; remembers which were asked for."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = {str(name).lstrip("-").replace("_", "-"): value for name, value in given.items()}
        self._asked: set[str] = set()

    def __contains__(self, name: str) -> bool:
        self._asked.add(name)
        return name in self._given

    def text(self, name: str, default: str = "") -> str:
        """Return what an argument says."""
        return str(self._given[name]) if name in self else default

    def flag(self, name: str) -> bool:
        """Return whether an argument without a value is given."""
        return name in self and str(self._given[name]).lower() not in ("false", "0", "none")

    def number(self, name: str, default: int = 0) -> int:
        """Return a whole number.

        Raises:
            RecipeError: the argument is none.
        """
        if name not in self:
            return default
        try:
            return int(self._given[name])
        except (TypeError, ValueError):
            raise RecipeError(f"--{name} is {self._given[name]!r}; it must be a whole number.") from None

    def unknown(self, quiet: Iterable[str]) -> list[str]:
        """Return the arguments for which nobody has asked, but for quiet ones."""
        return sorted(set(self._given) - self._asked - set(quiet))


def row_of(given: Mapping[str, Any], gpus: int, gpu: str) -> tuple[dict[str, Any], list[str]]:
    """Return the row of a run of Megatron-LM with these arguments, and those that are not understood.

    Raises:
        RecipeError: sizes are missing, or are no numbers.
    """
    said = Arguments(given)
    for name in ("num-layers", "hidden-size", "num-attention-heads"):
        if name not in said:
            raise RecipeError(f"--{name} is missing: a model's sizes are its layers, width and heads.")
    row = {"framework": "megatron-lm", "arch": _arch(said), "gpu": gpu, "gpus": gpus}
    row |= _ranks(said, row["arch"]["layers"], gpus) | _step(said)
    return row, said.unknown(QUIET)


def _arch(said: Arguments) -> dict[str, Any]:
    hidden, heads, gated = said.number("hidden-size"), said.number("num-attention-heads"), said.flag("swiglu")
    words = said.number("vocab-size") or VOCABULARIES.get(said.text("tokenizer-type", "GPT2BPETokenizer"), 0)
    if not words:
        raise RecipeError(f"--vocab-size is missing, and {said.text('tokenizer-type')} does not tell it.")
    multiple = said.number("make-vocab-size-divisible-by", 128) * said.number("tensor-model-parallel-size", 1)
    kv_heads = said.number("num-query-groups", heads) if said.flag("group-query-attention") else heads
    learned = said.text("position-embedding-type", "learned_absolute") == "learned_absolute"
    inner = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
    return {
        "layers": said.number("num-layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": said.number("kv-channels", hidden // max(1, heads)),
        "ffn": said.number("ffn-hidden-size", inner),
        "vocab": math.ceil(words / multiple) * multiple,
        "gated": gated,
        "tied": not said.flag("untie-embeddings-and-output-weights"),
        "bias": not said.flag("disable-bias-linear"),
        "layer_norm": said.text("normalization", "LayerNorm") == "LayerNorm",
        "positions": said.number("max-position-embeddings") if learned else 0,
        "qk_norm": said.flag("qk-layernorm"),
    }


def _ranks(said: Arguments, layers: int, gpus: int) -> dict[str, Any]:
    names = {"tensor": "tensor-model-parallel-size", "pipeline": "pipeline-model-parallel-size"}
    names |= {"context": "context-parallel-size"}
    ranks = {name: said.number(argument, 1) for name, argument in names.items()}
    per_stage = said.number("num-layers-per-virtual-pipeline-stage")
    stages = said.number("num-virtual-stages-per-pipeline-rank", 1)
    instances = said.number("num-distributed-optimizer-instances", 1)
    data = gpus // math.prod(ranks.values())
    return {
        **ranks,
        "sequence_parallel": said.flag("sequence-parallel") and ranks["tensor"] > 1,
        "virtual_stages": layers // ranks["pipeline"] // per_stage if per_stage else stages,
        "micro_batch_group": said.number("microbatch-group-size-per-virtual-pipeline-stage"),
        "zero": "zero1" if said.flag("use-distributed-optimizer") else "none",
        **({"shard": data // instances, "replicate": instances} if instances > 1 else {}),
    }


def _step(said: Arguments) -> dict[str, Any]:
    _check_recomputed(said)
    sixteen = "bf16-amp" if said.flag("bf16") else "fp16-amp" if said.flag("fp16") else "fp32"
    local = said.text("transformer-impl") == "local"
    deferred = said.flag("defer-embedding-wgrad-compute")
    wide = said.flag("accumulate-allreduce-grads-in-fp32") or not said.flag("fp16")
    return {
        "micro_batch_size": said.number("micro-batch-size", 1),
        "global_batch_size": said.number("global-batch-size") or None,
        "seq": said.number("seq-length"),
        "precision": sixteen,
        "checkpointing": said.text("recompute-granularity", "none"),
        "attention": "unfused" if local else said.text("attention-backend", "fused").replace("auto", "fused"),
        "transformer_impl": "local" if local else "transformer_engine",
        "fused_loss": said.flag("cross-entropy-loss-fusion") and _native(said),
        "dropout": float(said.text("hidden-dropout", "0.1")),
        "attention_mask": not said.flag("no-create-attention-mask-in-dataloader"),
        "compile": False,
        "deterministic": said.flag("deterministic-mode"),
        "wgrad_fusion": not said.flag("no-gradient-accumulation-fusion"),
        "wide_gradients": wide,
        "deferred_logits": (said.number("wgrad-deferral-limit") or -1) if deferred else 0,
    }


def _native(said: Arguments) -> bool:
    """Return whether the fused loss is Megatron's own.

    Raises:
        RecipeError: it is another one.
    """
    which = said.text("cross-entropy-fusion-impl", "native")
    if which != "native":
        raise RecipeError(f"--cross-entropy-fusion-impl {which}: the bytes of that loss are not known.")
    return True


def _check_recomputed(said: Arguments) -> None:
    """Check that recomputed are all blocks or none.

    Raises:
        RecipeError: some blocks are recomputed together, or not at all.
    """
    method, together = said.text("recompute-method", "uniform"), said.number("recompute-num-layers", 1)
    if said.text("recompute-granularity") == "full" and (method, together) != ("uniform", 1):
        raise RecipeError("Recomputed blocks are planned one by one: --recompute-method uniform, 1 layer at a time.")
