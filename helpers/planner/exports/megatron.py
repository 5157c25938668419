"""Megatron-LM: the layout as arguments of its pretrain_gpt.py.

Flags as in megatron/training/arguments.py of Megatron Core 0.19; what they mean is described at
https://docs.nvidia.com/megatron-core/developer-guide/latest/user-guide/parallelism-guide.html. The arguments hold the
model's sizes, too, and train on made-up tokens (--mock-data) until a tokenizer and a data set take their place.
"""

from ..catalog.gpus import Gpu
from ..catalog.rotations import rotation_of
from ..layout.arch import Arch
from ..layout.layout import Layout
from .heading import heading
from .refusals import never_written, other_habits, refuse

FILE = "planned.args"
WITHOUT_COMMENTS = f"$(grep -v '^#' {FILE})"
COMMAND = f"pretrain_gpt.py {WITHOUT_COMMENTS}"
ONE_CONNECTION = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
_BLACKWELL = 10  # the first number of its compute capability
PRECISIONS = {"fp32": [], "bf16-amp": ["--bf16"], "fp16-amp": ["--fp16"], "fp8": ["--bf16", "--fp8-format hybrid"]}

ATTENTIONS = {
    "fused": ["--attention-dropout 0"],
    "cudnn": ["--attention-backend fused", "--attention-dropout 0"],
    "flash": ["--attention-backend flash", "--attention-dropout 0"],
    "fused-2023": ["--attention-dropout 0"],
    "eager": ["--attention-backend unfused", "--attention-dropout 0.1"],
}


def text(layout: Layout, model: str, gpu: str) -> str:
    """Return the arguments, one a line, after comments that the command leaves out.

    Raises:
        RecipeError: Megatron cannot express a part of the layout.
    """
    refuse(refusals(layout, "Megatron"))
    head = [
        heading(layout, model, gpu),
        f"Run on every node: torchrun ... {COMMAND}",
        *connections(layout),
        *unknown_rotation(layout.arch, model),
        "Placeholders to replace: --lr and --train-iters are not planned, and --mock-data and --tokenizer-type "
        "NullTokenizer train on made-up tokens (yours: --data-path, --tokenizer-type, --tokenizer-model).",
    ]
    sizes = [*_model(layout.arch, layout.seq), *_rotation(layout.arch, model)]
    lines = [*(f"# {line}" for line in head), *sizes, *_layout(layout), *_memory(layout), *_run(layout)]
    return "\n".join(lines) + "\n"


def environment(layout: Layout, gpu: Gpu) -> dict[str, str]:
    """Return the variables without which Megatron-LM does not start: `validate_args` in its arguments.py asserts one.

    Before Blackwell, tensor and context ranks need kernels to start in the order in which they were launched.
    """
    older = (gpu.capability or (0, 0))[0] < _BLACKWELL
    return dict(ONE_CONNECTION) if older and (layout.tensor > 1 or layout.context > 1) else {}


def connections(layout: Layout) -> list[str]:
    """Return a comment about the variable that tensor and context ranks need, or none."""
    if layout.tensor == layout.context == 1:
        return []
    return ["On GPUs before Blackwell, set CUDA_DEVICE_MAX_CONNECTIONS=1: tensor and context ranks require it."]


def unknown_rotation(arch: Arch, model: str) -> list[str]:
    """Return a comment about rotations whose base is not known, or none."""
    if arch.positions or rotation_of(model):
        return []
    return ["The base and the scaling of this model's rotary embeddings are not known here: Megatron's defaults apply."]


def _rotation(arch: Arch, model: str) -> list[str]:
    rotation = None if arch.positions else rotation_of(model)
    if rotation is None:
        return []
    scaled = ["--use-rope-scaling", f"--rope-scaling-factor {rotation.factor:g}"] if rotation.factor else []
    return [f"--rotary-base {rotation.base}", *scaled]


def refusals(layout: Layout, engine: str) -> list[tuple[bool, str]]:
    """Return (whether it applies, what to change) for what Megatron Core cannot express."""
    return [
        other_habits(layout, engine, ("megatron",)),
        (
            layout.pipeline > 1 and layout.schedule in ("gpipe", "zero-bubble"),
            f"{engine} has no {layout.schedule} schedule: use 1f1b or interleaved.",
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
    return lines + ([f"--moe-shared-expert-intermediate-size {arch.shared_ffn}"] if arch.shared_ffn else [])


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
