"""What a framework does where a published run does not say: its defaults."""

from dataclasses import dataclass, replace
from typing import Any

from ..config import RecipeError


@dataclass(frozen=True)
class Habits:
    """The defaults of one framework, in the words of a `Layout`.

    Attributes:
        precision, zero, recompute, schedule: see `Layout`.
        fused: whether it runs fused kernels, or compiles.
        attention: see `Layout`.
        layer_norm, gated, bias: of its own models, where only sizes are given.
        vocab: of its own models.
        plain_tokens: when tensor ranks do not split tokens though `sequence_parallel` says so: "in pipelines", or
            "unless selective".
        compiles_fp8: whether it compiles 8-bit runs, of which nothing else is said.
        spreads_experts: whether all ranks of a stage split the experts, up to 64.
        tensor_overlap, accumulate_whole, plain_ends, cuda_graphs, packed, head_dummy, buffer_passes: see `Layout`.
        casts_weights: whether its mixed precision casts weights and optimizer's state, too.
        logs: whose memory its log has: "fullest" for the fullest rank's, "first" or "last" for that pipeline stage's.
        dropout, attention_mask: see `Layout`.
        picks_attention: whether its fused attention is cuDNN's on Hopper, and flash attention elsewhere, as Transformer
            Engine picks it.
        slow_h100: whether its H100 are the ones with 96 GB and a limit of 500 W, as those of torchtitan's authors.
        data_overlap: see `Layout`.
        lora_targets, lora_dropout: see `Layout`, of its adapters.
        own_length: whether a run of which no length is said has its model's: 8,192 tokens for Llama 3.
        deepspeed: see `Layout`.
        shares_ends: whether a model with two blocks less than its stages would share has its embedding and its head
            count as blocks: see `ends_as_blocks` of `Layout`.
        fused_loss: which loss it takes where a line has it fused: see `Layout.loss`.
        as_command: whether what a line leaves out is what `plan` assumes for the same options.
        pace: measured / forecast seconds on the source's machine.
        network: GB/s between nodes that each of its GPUs has; 0.0 where it is as in the catalog.
    """

    engine: str
    precision: str
    zero: str
    recompute: str = "none"
    schedule: str = "1f1b"
    fused: bool = True
    sequence_parallel: bool = True
    attention: str = "fused"
    gated: bool = True
    layer_norm: bool = False
    vocab: int = 51200
    network: float = 0.0
    pace: float = 1.0
    tensor_overlap: bool = False
    slow_h100: bool = False
    accumulate_whole: bool = False
    plain_ends: bool = False
    casts_weights: bool = False
    logs: str = "fullest"
    dropout: float = 0.0
    attention_mask: bool = False
    picks_attention: bool = False
    cuda_graphs: bool = False
    packed: bool = False
    head_dummy: bool = False
    buffer_passes: bool = False
    plain_tokens: str = ""
    compiles_fp8: bool = False
    spreads_experts: bool = False
    data_overlap: bool = True
    lora_targets: str = "attention"
    lora_dropout: float = 0.0
    own_length: bool = False
    fused_loss: str = "fused"
    deepspeed: bool = False
    shares_ends: bool = False
    as_command: bool = False


_MEGATRON = Habits(
    "megatron", "bf16-amp", "zero1", schedule="interleaved", gated=False, layer_norm=True, tensor_overlap=True
)
# torchtitan's docs/float8.md: 8-bit products are fast only if their casts are compiled into the kernels around them.
_TITAN = Habits(
    "torchtitan", "bf16-amp", "zero3", "selective", fused=False, vocab=128256, slow_h100=True, compiles_fp8=True
)
_LLAMA = Habits("megatron", "fp8", "zero1", vocab=128256, tensor_overlap=True, cuda_graphs=True, own_length=True)
_OLD_MEGATRON = Habits(
    "megatron",
    "fp16-amp",
    "none",
    "full",
    sequence_parallel=False,
    gated=False,
    layer_norm=True,
)

# Megatron-DeepSpeed of 2022: no compiler and no flash attention; data ranks send after the last pass of a pipeline.
# Its dropout is 0.1, but one kernel adds the bias, drops and adds the stream; planned apart, these would take too long.
_DEEPSPEED = replace(
    _OLD_MEGATRON,
    precision="fp16-amp",
    zero="zero1",
    fused=False,
    attention="eager",
    data_overlap=False,
    deepspeed=True,
)

# megatron/training/global_vars.py: the last rank writes the log; transformer_config.py: dropout is 0.1;
# arguments.py: the data loader makes attention masks; no communication is hidden unless an argument says so; and
# core/distributed/param_and_grad_buffer.py goes through the gradients before they are sent (`check_grads`,
# `gradient_scaling_factor`).
_MEGATRON_LM = replace(
    _MEGATRON,
    logs="last",
    dropout=0.1,
    attention_mask=True,
    picks_attention=True,
    tensor_overlap=False,
    data_overlap=False,
    packed=True,
    head_dummy=True,
    buffer_passes=True,
)

# By the `framework` of a line.
HABITS = {
    "torchtitan": _TITAN,
    "ao": _TITAN,
    # kempnerforge/distributed/tensor_parallel.py: stages of a pipeline hold whole tokens, and the whole head; every
    # rank the embedding. scripts/train.py: F.cross_entropy of whole rows, model.to(param_dtype), a log of rank 0.
    "kempnerforge": Habits(
        "torchtitan",
        "bf16-amp",
        "zero3",
        "full",
        fused=False,
        vocab=128256,
        accumulate_whole=True,
        plain_ends=True,
        casts_weights=True,
        logs="first",
        plain_tokens="in pipelines",
    ),
    # examples/llm_benchmark: Transformer Engine's norms and rotations, and ep_size 64 or all ranks of a stage.
    "automodel": Habits("torchtitan", "bf16", "zero3", fused=True, spreads_experts=True),
    "torchtune": Habits("pytorch", "bf16", "zero3", "full", fused=False, vocab=128256),
    "llm-foundry": Habits(
        "torchtitan",
        "bf16-amp",
        "zero3",
        fused=False,
        attention="fused-2023",
        gated=False,
        layer_norm=True,
        vocab=50368,
    ),
    "fms-fsdp": Habits("torchtitan", "bf16-amp", "zero3", fused=True, vocab=32000, network=6.25),
    "megatron-lm": _MEGATRON_LM,
    # swift/megatron/arguments: rows are packed without masks, and the log has the memory of all ranks.
    "ms-swift": replace(
        _MEGATRON_LM,
        gated=True,
        layer_norm=False,
        logs="fullest",
        dropout=0.0,
        attention_mask=False,
        picks_attention=False,
        lora_targets="all",
        lora_dropout=0.05,
    ),
    "megatron-bridge": _LLAMA,
    "nemo": replace(_LLAMA, lora_dropout=0.1),
    # Korthikanti et al. 2022, table 5: full recomputation without, selective with sequence parallelism.
    "calculon": replace(_OLD_MEGATRON, sequence_parallel=True, plain_tokens="unless selective"),
    "vtrain": Habits(
        "megatron",
        "fp16-amp",
        "none",
        "full",
        sequence_parallel=False,
        attention="eager",
        gated=False,
        layer_norm=True,
        network=12.5,
    ),
    "megatron-deepspeed": _DEEPSPEED,
    # bigscience's Jean Zay: four links of 100 Gb/s in a node of eight A100 (chronicles-prequel.md, the BLOOM paper).
    # It writes down what nvidia-smi shows (`device_bytes` of an answer), and gives the embedding a block's share where
    # 2 + layers divide by the stages ("Rebalancing layers"). Its pace is the median over 60 of its rows; by micro-batch
    # and tensor ranks it goes from 1.05 to 1.25, and no link or matmul here says why.
    "bigscience": replace(_DEEPSPEED, network=6.25, pace=1.11, shares_ends=True),
    # MLPerf's submissions train with NeMo; their adapters are those of attention, with dropout.
    "mlperf": replace(_LLAMA, lora_dropout=0.1),
    "dgxc-benchmarking": _LLAMA,
    "simumax": replace(
        _MEGATRON, tensor_overlap=False, data_overlap=False, packed=True, fused_loss="te", buffer_passes=True
    ),
    "internevo": Habits("megatron", "bf16-amp", "zero1", fused=False, vocab=103168, network=6.25),
    "colossalai": Habits("torchtitan", "bf16-amp", "zero1", fused=False, vocab=32000),
    "easycontext": Habits("torchtitan", "bf16", "zero3", "full", fused=False, vocab=32000),
}
USUAL = {  # by the `engine` of a line that names no framework
    "torchtitan": Habits("torchtitan", "bf16-amp", "zero3", as_command=True),
    "megatron": Habits("megatron", "bf16-amp", "zero1", as_command=True),
}


GENERIC = "generic"


def habits_of(framework: str, engine: Any = None) -> Habits:
    """Return the habits of a framework by its name; `GENERIC` has those of no one in particular, for an `engine`.

    Raises:
        RecipeError: one is not known, or a framework has an engine of its own.
    """
    if engine is not None and (framework != GENERIC or str(engine) not in USUAL):
        raise RecipeError(f"engine is {engine!r}; choose {' or '.join(USUAL)}, and leave framework out.")
    if framework != GENERIC and framework not in HABITS:
        raise RecipeError(f"framework is {framework!r}; choose one of {GENERIC}, {', '.join(HABITS)}.")
    return HABITS.get(framework) or USUAL[engine or "torchtitan"]
