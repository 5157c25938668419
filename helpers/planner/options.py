"""The options of `python -m helpers plan`: the field's words, each once; old spellings work and are not shown."""

import argparse
import re
from typing import Any

from .amounts import gib, whole
from .config import (
    ATTENTIONS,
    CONTEXTS,
    ENGINES,
    IMPLEMENTATIONS,
    IN_A_PLAIN_LOOP,
    LORA_DTYPES,
    LOSSES,
    METHODS,
    OFFLOADS,
    OPTIMIZERS,
    QUANTIZATIONS,
    SCHEDULES,
    ZEROS,
)
from .short_help import shorten_help
from .whole_run import FAILURES_PER_GPU_DAY, RESTART_SECONDS

RECOMPUTED = ("none", "selective", "full", "every-2", "every-3", "sqrt")
WRAPS = ("torchrun", "sbatch", "skypilot")
LINKS = {
    "--link-inside": "bandwidth from a GPU to the others in its node, each way",
    "--link-outside": "bandwidth from a GPU to other nodes, each way",
}


class _Group:
    """Adds options to a group of the help. None has a default: what is not given is assumed, and printed."""

    def __init__(self, parser: argparse.ArgumentParser, title: str) -> None:
        self._group = parser.add_argument_group(title)

    def option(self, flag: str, text: str, *old: str, **how: Any) -> None:
        """Add an option, and its old spellings without a line of their own."""
        how.setdefault("dest", flag.removeprefix("--").replace("-", "_"))
        self._group.add_argument(flag, help=text, **how)
        for spelling in old:
            self._group.add_argument(spelling, help=argparse.SUPPRESS, **how)

    def number(self, flag: str, text: str, *old: str, mark: str = "", **how: Any) -> None:
        """Add an option that takes a whole number, perhaps with a `mark` before or after it."""
        self.option(flag, text, *old, type=whole(mark), metavar="N", **how)

    def switch(self, flag: str, text: str, *old: str, value: bool = True, **how: Any) -> None:
        """Add an option that takes nothing and stands for `value`."""
        self.option(flag, text, *old, action="store_const", const=value, **how)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe all options."""
    _add_training(_Group(parser, "what is trained, and how"))
    _add_memory(_Group(parser, "what saves memory"))
    _add_ranks(_Group(parser, "ranks"))
    _add_hardware(_Group(parser, "hardware"))
    _add_answer(_Group(parser, "the answer"))
    _add_whole_run(_Group(parser, "a whole run"))
    shorten_help(parser)


def _add_training(group: _Group) -> None:
    group.option("--model", "a model from the catalog, or a Hugging Face config", metavar="NAME|config.json")
    group.number("--micro-batch-size", "sequences or images in a micro-batch", "--batch")
    steps = "micro-batches per step and data rank (default: one per pipeline stage)"
    group.number("--gradient-accumulation-steps", steps, "--accumulate", "--micro-batches")
    group.number("--seq", "tokens in a sequence")
    group.number("--image-size", "pixels per side (default: the model's own)")
    group.number("--target-seq", "tokens that an encoder-decoder writes (default: as many as it reads)")
    each = "tokens in the longest sequence of each micro-batch, in order"
    group.option("--lengths", each, type=_numbers, metavar="A,B")
    group.number("--packed", "tokens in each document of a packed sequence; documents do not attend to each other")
    group.option(
        "--method",
        "what the model learns from: tokens, pairs of preferred and rejected answers, or rewards",
        choices=METHODS,
    )
    copy = "for dpo and grpo: no reference model"
    group.switch("--no-reference", copy, value=False, dest="reference")
    group.option("--loss", "logits of all tokens at once, of some at a time, or never written", choices=LOSSES)
    group.option("--dropout", "dropout in all layers that have it (default: the config's)", type=float, metavar="P")
    group.option("--freeze", "modules that are not trained", type=_names, metavar="A,B")
    group.option("--train-only", "the only modules that are trained", type=_names, metavar="A,B")
    text = "bf16 and fp16 keep everything in 16 bits; amp and fp8 keep FP32 weights"
    group.option("--precision", text, choices=IN_A_PLAIN_LOOP)
    group.option("--optimizer", "the optimizer", choices=OPTIMIZERS)
    group.option("--optimizer-impl", "implementation of the optimizer", choices=IMPLEMENTATIONS)
    group.switch("--master-weights", "the optimizer keeps FP32 copies of 16-bit weights")
    group.number("--galore-rank", "rank to which GaLore projects gradients (default 128)")
    group.option("--attention", "fused, or with scores in memory", choices=(*ATTENTIONS, "fused"))
    group.switch("--tf32", "FP32 matmuls use TF32 (convolutions do by default)")
    group.switch("--channels-last", "store images and filters with the channels last (NHWC)")
    group.option("--compile", "torch.compile fuses chains of operations", action=argparse.BooleanOptionalAction)
    group.switch("--cuda-graphs", "the host launches recorded graphs")
    program = "the training program: a plain PyTorch loop around the whole model, or an engine"
    group.option("--engine", program, type=_engine, choices=ENGINES)


def _add_memory(group: _Group) -> None:
    blocks = f"which blocks are recomputed: {', '.join(RECOMPUTED).replace('full', 'full (or every)')}"
    old = ("--checkpointing", "--recompute")
    group.option("--activation-checkpointing", blocks, *old, dest="checkpointing", type=_blocks, metavar="WHICH")
    group.number("--recompute-every", argparse.SUPPRESS)
    group.number("--lora-rank", "rank of LoRA adapters; without it, the whole model is trained", mark="r")
    group.option("--lora-alpha", "scale of the adapters (default: twice the rank)", type=float, metavar="A")
    group.option(
        "--lora-targets", "layers with adapters, or all-linear (default: PEFT's choice)", type=_names, metavar="A,B"
    )
    group.option("--lora-dropout", "dropout before the adapters", type=float, metavar="P")
    group.option("--lora-dtype", "dtype of adapters", choices=LORA_DTYPES)
    group.switch("--dora", "adapters that also train magnitudes (DoRA)")
    group.option(
        "--modules-to-save", "modules trained in full, in addition to the adapters", type=_names, metavar="A,B"
    )
    group.option("--quantize", "format of the frozen base", choices=QUANTIZATIONS)
    kept = "4-bit layers keep their inputs, as bitsandbytes did before 0.43.2"
    group.switch("--quantized-inputs", kept)
    group.option("--offload", "what is kept in the host's memory", choices=OFFLOADS)
    group.switch("--step-in-backward", "update parameters during the backward pass")
    zeroed = "zero gradients in place instead of freeing them, as PyTorch did before 2.0"
    group.switch("--no-set-to-none", zeroed, "--keep-grads", value=False, dest="set_to_none")
    group.switch("--expandable-segments", "turn on expandable_segments in PYTORCH_ALLOC_CONF")


def _add_ranks(group: _Group) -> None:
    group.number("--gpus", "number of GPUs (default: the product of the ranks below)", mark="x")
    group.number("--ranks", argparse.SUPPRESS)
    group.number("--tp", "tensor parallel: ranks that split each matmul", "--tensor", dest="tensor")
    group.number("--pp", "pipeline parallel: stages of consecutive blocks", "--pipeline", dest="pipeline")
    group.number("--cp", "context parallel: ranks that split each sequence", "--context", dest="context")
    group.number("--ep", "expert parallel: ranks that split the experts", "--expert", dest="expert")
    rest = "data-parallel ranks that split state (default: all GPUs that are left)"
    group.number("--dp-shard", rest, "--data-shard", dest="shard")
    groups = "groups of --dp-shard ranks (default 1, or as many as --gpus and --dp-shard imply)"
    group.number("--dp-replicate", groups, "--replicate", dest="replicate")
    stage = "what data ranks split: 0 nothing, 1 optimizer, 2 + gradients, 3 + parameters"
    group.option("--zero-stage", stage, "--zero", "--shard", dest="zero", type=_zero, metavar="{0,1,2,3}")
    group.option("--schedule", "order in which the pipeline runs micro-batches", choices=SCHEDULES)
    group.number("--virtual-stages", "parts of the model per pipeline rank")
    group.option("--context-method", "how context ranks exchange keys and values", choices=CONTEXTS)
    tokens = "tensor ranks do not split norms by tokens"
    group.switch("--no-sequence-parallel", tokens, value=False, dest="sequence_parallel")
    group.switch("--tensor-overlap", "tensor ranks communicate in chunks, during matmuls")
    kept = "ZeRO-3 keeps gathered parameters"
    group.switch("--no-reshard-after-forward", kept, value=False, dest="reshard_after_forward")
    group.switch("--accumulate-whole", "ZeRO-3 reduces gradients once per step")
    group.switch("--plain-ends", "each tensor rank holds the whole embedding and full rows of logits")


def _add_hardware(group: _Group) -> None:
    group.option(
        "--gpu",
        "a GPU from the catalog, or this machine (default on one GPU: the common ones)",
        metavar="NAME|this",
    )
    group.option("--budget", "a GPU with this much memory", type=gib, metavar="GiB")
    group.option("--cluster", "a cluster from the catalog, such as dgx-h100; --list shows all", metavar="NAME")
    group.number("--gpus-per-node", "GPUs in a node (default: the cluster's)")
    measured = "rates of your own machine: a table of matmuls, nccl-tests, roofline --json, or runs"
    group.option("--rates", f"{measured} (docs/planner.md)", metavar="FILE")
    for flag, text in LINKS.items():
        group.option(flag, text, type=float, metavar="GB/s")


def _add_answer(group: _Group) -> None:
    for flag, text in (
        ("--json", "print JSON"),
        ("--list", "show the models, GPUs and clusters of the catalog"),
        ("--roles", "print a table of all pipeline ranks"),
        ("--largest-batch", "find the largest micro-batch that fits"),
        ("--measure", "also run two real training steps on this machine's GPU"),
    ):
        group.option(flag, text, action="store_true")
    group.option("--timeline", "draw a step on several GPUs as an SVG, PNG or PDF", metavar="FILE")
    exports = (
        "instead of an answer, write a training script (pytorch, trainer) or an engine's configuration "
        "(torchtitan, megatron, megatron-bridge, deepspeed, torchrun)"
    )
    group.option("--export", exports, metavar="NAME")
    group.option("--wrap", "with --export: also print the job that starts it", choices=WRAPS)
    from_file = "plan the run that a file describes: Megatron-LM, NeMo, torchtitan, torchtune, Axolotl, and others"
    group.option("--from", from_file, metavar="FILE", dest="from_file")
    group.option("--rows", "plan many runs, one per line (docs/planner.md lists the fields)", metavar="FILE.jsonl")
    group.option("--out", "file for the answers to --rows, or for --export", metavar="FILE")


def _add_whole_run(group: _Group) -> None:
    tokens = "tokens of a whole run, such as 15T; adds days, GPU-hours, goodput, and how often to save"
    group.option("--run-tokens", tokens, metavar="N")
    rate = f"failures that stop the job, per GPU and day (default {FAILURES_PER_GPU_DAY:.2g}, as for Llama 3)"
    group.option("--failures-per-gpu-day", rate, type=float, metavar="N")
    written = "the time to write the state, at the rate per GPU of Llama 3's storage"
    still = f"seconds for which a checkpoint stops training (default: {written})"
    group.option("--checkpoint-seconds", still, type=float, metavar="S")
    again = f"seconds from a failure until the job trains again (default {RESTART_SECONDS:g})"
    group.option("--restart-seconds", again, type=float, metavar="S")
    group.option("--price-per-gpu-hour", "in any currency; adds the cost of the run", type=float, metavar="P")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _engine(text: str) -> str:
    if text == "deepspeed":
        raise argparse.ArgumentTypeError(
            "DeepSpeed's buffers, and the gradients that it moves to the host, are not modeled. Plan its ZeRO stage "
            "with PyTorch's sharding (--zero-stage), or write its configuration with --export deepspeed."
        )
    return text


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in _names(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers such as 512,768,640") from None


def _blocks(text: str) -> str:
    """Return which blocks are recomputed, as a config has it."""
    if text not in (*RECOMPUTED, "every") and not re.fullmatch(r"every-[1-9]\d*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(RECOMPUTED)}")
    return text


def _zero(text: str) -> str:
    """Return a ZeRO stage as a config has it, from its number or its name."""
    name = {"0": "none", "1": "zero1", "2": "zero2", "3": "zero3"}.get(text, text)
    if name not in ZEROS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a stage of ZeRO; choose from 0, 1, 2, 3")
    return name
