"""Megatron-LM: the layout as arguments of its pretrain_gpt.py.

Flags as in megatron/training/arguments.py of Megatron Core 0.19; what they mean is described at
https://docs.nvidia.com/megatron-core/developer-guide/latest/user-guide/parallelism-guide.html. The arguments hold the
model's sizes, too, and train on made-up tokens (--mock-data) until a tokenizer and a data set take their place.
"""

from ..layout.arch import Arch
from ..layout.layout import Layout
from .refusals import never_written, other_habits, refuse

FILE = "planned.args"
COMMAND = f"pretrain_gpt.py $(cat {FILE})"
PRECISIONS = {"fp32": [], "bf16-amp": ["--bf16"], "fp16-amp": ["--fp16"], "fp8": ["--bf16", "--fp8-format hybrid"]}

ATTENTIONS = {
    "fused": ["--attention-dropout 0"],
    "cudnn": ["--attention-backend fused", "--attention-dropout 0"],
    "flash": ["--attention-backend flash", "--attention-dropout 0"],
    "fused-2023": ["--attention-dropout 0"],
    "eager": ["--attention-backend unfused", "--attention-dropout 0.1"],
}


def text(layout: Layout, model: str) -> str:
    """Return the arguments, one a line.

    Raises:
        RecipeError: Megatron cannot express a part of the layout.
    """
    refuse(refusals(layout, "Megatron"))
    lines = [*_model(layout.arch, layout.seq), *_layout(layout), *_memory(layout), *_run(layout)]
    return "\n".join(lines) + "\n"


def refusals(layout: Layout, engine: str) -> list[tuple[bool, str]]:
    """Return (whether it applies, what to change) for what Megatron Core cannot express."""
    return [
        other_habits(layout, engine, ("megatron",)),
        (
            layout.pipeline > 1 and layout.schedule in ("gpipe", "zero-bubble"),
            f"{engine} does not have the schedule {layout.schedule}: use 1f1b or interleaved.",
        ),
        (
            layout.zero in ("zero2", "zero3"),
            f"{engine}'s distributed optimizer is ZeRO-1: use zero1; {layout.zero} needs Megatron-FSDP, whose "
            "buffers are not planned.",
        ),
        (
            not layout.reshard_after_forward,
            f"{engine} has no parameters to reshard: reshard_after_forward False needs zero3.",
        ),
        (
            layout.precision == "bf16",
            f"{engine} keeps FP32 weights beside its 16-bit ones: use bf16-amp instead of bf16.",
        ),
        (
            layout.recompute_every > 1,
            f"{engine} recomputes every block, or the first of a stage, not one in {layout.recompute_every}: "
            "use recompute_every 1.",
        ),
        *never_written(layout),
        (not layout.compile, f"{engine} always fuses its chains of operations: leave compile at True."),
    ]


def uneven_stages(layout: Layout) -> str:
    """Return what each stage holds, as Megatron spells it; empty where all hold the same number of blocks."""
    sizes = [len(layers) for layers in layout.stage_layers()]
    if len(set(sizes)) == 1:
        return ""
    return "E" + "|".join(f"t*{size}" for size in sizes) + "L"


def expert_blocks(arch: Arch) -> str:
    """Return which blocks have experts, as Megatron spells it."""
    mixed = f"[1]*{arch.layers - arch.dense_layers}"
    return f"([0]*{arch.dense_layers}+{mixed})" if arch.dense_layers else f"({mixed})"


def _model(arch: Arch, seq: int) -> list[str]:
    lines = [
        f"--num-layers {arch.layers}",
        f"--hidden-size {arch.hidden}",
        f"--ffn-hidden-size {arch.ffn or arch.moe_ffn}",
        f"--num-attention-heads {arch.heads}",
        f"--normalization {'LayerNorm' if arch.layer_norm else 'RMSNorm'}",
        f"--position-embedding-type {'learned_absolute' if arch.positions else 'rope'}",
        f"--max-position-embeddings {arch.positions or seq}",
        f"--vocab-size {arch.vocab}",
        "--make-vocab-size-divisible-by 1",
        "--tokenizer-type NullTokenizer",
    ]
    lines += ["--swiglu"] * arch.gated + ["--disable-bias-linear"] * (not arch.bias)
    lines += ["--untie-embeddings-and-output-weights"] * (not arch.tied)
    return lines + _attention(arch) + (_experts(arch) if arch.experts else [])


def _attention(arch: Arch) -> list[str]:
    if not arch.kv_lora:
        grouped = [f"--group-query-attention --num-query-groups {arch.kv_heads}"]
        return [f"--kv-channels {arch.head_dim}", *(grouped if arch.kv_heads < arch.heads else [])]
    lines = [
        "--multi-latent-attention",
        f"--kv-lora-rank {arch.kv_lora}",
        f"--qk-head-dim {arch.head_dim - arch.rope_dim}",
        f"--qk-pos-emb-head-dim {arch.rope_dim}",
        f"--v-head-dim {arch.values}",
    ]
    return lines + ([f"--q-lora-rank {arch.q_lora}"] if arch.q_lora else [])


def _experts(arch: Arch) -> list[str]:
    lines = [
        f"--num-experts {arch.experts}",
        f"--moe-router-topk {arch.experts_per_token}",
        f"--moe-ffn-hidden-size {arch.moe_ffn}",
        f"--moe-layer-freq {expert_blocks(arch)}",
        "--moe-grouped-gemm",
        "--moe-token-dispatcher-type alltoall",
    ]
    shared = arch.shared_experts * arch.moe_ffn
    return lines + ([f"--moe-shared-expert-intermediate-size {shared}"] if shared else [])


def _layout(layout: Layout) -> list[str]:
    lines = [f"--tensor-model-parallel-size {layout.tensor}"]
    lines += ["--sequence-parallel"] * layout.splits_tokens + ["--tp-comm-overlap"] * layout.tensor_overlap
    lines += [f"--pipeline-model-parallel-size {layout.pipeline}"]
    if uneven := uneven_stages(layout):
        lines += [f"--pipeline-model-parallel-layout {uneven}"]
    elif layout.virtual_stages > 1:
        lines += [f"--num-virtual-stages-per-pipeline-rank {layout.virtual_stages}"]
    lines += [f"--context-parallel-size {layout.context}"]
    if layout.context > 1:
        lines += [f"--cp-comm-type {'p2p' if layout.context_method == 'ring' else 'a2a'}"]
    if layout.arch.experts:
        lines += [f"--expert-model-parallel-size {layout.expert}", "--expert-tensor-parallel-size 1"]
    lines += ["--overlap-grad-reduce"] * layout.data_overlap
    if layout.zero == "zero1":
        lines += ["--use-distributed-optimizer"] + ["--overlap-param-gather"] * layout.data_overlap
        lines += [f"--num-distributed-optimizer-instances {layout.replicate}"] if layout.replicate > 1 else []
    return lines


def _memory(layout: Layout) -> list[str]:
    recompute = {
        "none": [],
        "selective": ["--recompute-granularity selective"],
        "full": ["--recompute-granularity full", "--recompute-method uniform", "--recompute-num-layers 1"],
    }
    graphs = ["--enable-cuda-graph"] * layout.cuda_graphs
    graphs += ["--no-create-attention-mask-in-dataloader"] * (not layout.attention_mask)
    graphs += ["--accumulate-allreduce-grads-in-fp32"] * (layout.precision == "fp16-amp")
    return [*graphs, *PRECISIONS[layout.precision], *recompute[layout.recompute], *ATTENTIONS[layout.attention]]


def _run(layout: Layout) -> list[str]:
    sequences = layout.micro_batch_size * layout.micro_batches * layout.data
    return [
        f"--micro-batch-size {layout.micro_batch_size}",
        f"--global-batch-size {sequences}",
        f"--seq-length {layout.seq}",
        "--hidden-dropout 0",
        "--lr 3e-4",
        "--train-iters 1000",
        "--mock-data",
    ]
