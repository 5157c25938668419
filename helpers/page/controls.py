"""What can be set on the page: each control is an option of the command, with the choices of the planner."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..core.colors import COLORS
from ..meter.categories import CATEGORIES
from ..planner.catalog.archs import arch_names
from ..planner.catalog.clusters import CLUSTERS
from ..planner.catalog.gpus import GPUS
from ..planner.catalog.models import limits, model_names
from ..planner.config import (
    ATTENTIONS,
    CONTEXTS,
    ENGINES,
    IMPLEMENTATIONS,
    LOSSES,
    METHODS,
    OFFLOADS,
    OPTIMIZERS,
    PRECISIONS,
    QUANTIZATIONS,
    SCHEDULES,
)
from ..planner.exports import EXPORTS
from ..planner.script import STYLES

OWN = "config.json"  # the model whose config the user gives
KINDS = ("one", "many")
CHECKPOINTINGS = ("none", "selective", "full", "every-2", "every-3", "sqrt")


@dataclass(frozen=True)
class Control:
    """One thing to set.

    Attributes:
        name: in the page's address.
        flag: the option of the command that it stands for.
        label: what the page calls it.
        value: what it is at first; None: not given, so that the planner assumes it.
        choices: (value, words) to choose from; () for a number or a text.
        number: whether it takes a number.
        switch: whether it is an option without a value.
        more: whether it is folded away at first.
    """

    name: str
    flag: str
    label: str
    value: Any = None
    choices: tuple[tuple[Any, str], ...] = ()
    number: bool = False
    switch: bool = False
    more: bool = False


def _choose(name: str, label: str, value: Any, choices: Sequence[Any], more: bool = False) -> Control:
    pairs = tuple(each if isinstance(each, tuple) else (each, str(each)) for each in choices)
    return Control(name, _flag(name), label, value, pairs, more=more)


def _number(name: str, label: str, value: Any = None, more: bool = False) -> Control:
    return Control(name, _flag(name), label, value, number=True, more=more)


def _switch(name: str, label: str) -> Control:
    return Control(name, _flag(name), label, False, switch=True, more=True)


# Options whose names are not those of their fields.
_FLAGS = {
    "checkpointing": "--activation-checkpointing",
    "tensor": "--tp",
    "pipeline": "--pp",
    "context": "--cp",
    "expert": "--ep",
    "replicate": "--dp-replicate",
    "zero": "--zero-stage",
}


def _flag(name: str) -> str:
    return _FLAGS.get(name) or "--" + name.replace("_", "-")


_GPU_NAMES = [(name, name) for name in GPUS]
_CLUSTER_NAMES = [(name, name) for name in CLUSTERS]
_LORA = [(0, "full training"), *((rank, f"LoRA, rank {rank}") for rank in (4, 8, 16, 32, 64, 128, 256))]
_TARGETS = [("", "PEFT's choice"), ("all-linear", "all linear layers")]
_METHOD_WORDS = {"sft": "next tokens", "dpo": "pairs of answers (DPO)", "grpo": "rewards (GRPO), the update alone"}
_PRECISION = [
    (name, words)
    for name, words in (
        ("bf16", "bf16 throughout"),
        ("bf16-amp", "bf16, FP32 weights"),
        ("fp16-amp", "fp16, FP32 weights"),
        ("fp8", "fp8, FP32 weights"),
        ("fp32", "fp32"),
    )
    if name in PRECISIONS
]
_METHOD = [(name, _METHOD_WORDS.get(name, name)) for name in METHODS]
_RUN = (
    Control("run_tokens", "--run-tokens", "tokens of the whole run", more=True),
    _number("price_per_gpu_hour", "price per GPU-hour", more=True),
)


def _one() -> list[Control]:
    return [
        _choose("model", "model", "llama-2-7b", [*model_names(), (OWN, "your own config.json")]),
        _choose("gpu", "GPU", "rtx-4090-24gb", [*_GPU_NAMES, ("", "another size")]),
        _number("budget", "GPU memory, GiB"),
        _number("seq", "sequence length, tokens", 2048),
        _number("micro_batch_size", "micro-batch", 1),
        _number("gradient_accumulation_steps", "micro-batches per step", 1),
        _choose("precision", "precision", "bf16", _PRECISION),
        _choose("lora_rank", "training", 16, _LORA),
        _choose("lora_targets", "layers with adapters", "all-linear", _TARGETS),
        _choose("quantize", "frozen base", "none", [(q, "not quantized" if q == "none" else q) for q in QUANTIZATIONS]),
        _choose("optimizer", "optimizer", "adamw", OPTIMIZERS),
        _choose("checkpointing", "activation checkpointing", "full", CHECKPOINTINGS),
        *_RUN,
        _choose("optimizer_impl", "optimizer kernels", "foreach", IMPLEMENTATIONS, more=True),
        _choose("attention", "attention", "sdpa", ATTENTIONS, more=True),
        _choose("loss", "loss", "full", LOSSES, more=True),
        _choose("offload", "offloaded to the host", "none", OFFLOADS, more=True),
        _number("image_size", "image size, pixels", more=True),
        _number("target_seq", "tokens that the decoder writes", more=True),
        _choose("method", "method", "sft", _METHOD, more=True),
        _switch("compile", "torch.compile"),
        _switch("step_in_backward", "optimizer step in backward"),
        _switch("expandable_segments", "expandable segments"),
    ]


def _many() -> list[Control]:
    return [
        _choose("model", "model", "llama-3.1-8b", [*arch_names(), (OWN, "your own config.json")]),
        _choose("cluster", "cluster", "dgx-h100", _CLUSTER_NAMES),
        _number("gpus", "GPUs", 8),
        _number("seq", "sequence length, tokens", 8192),
        _number("micro_batch_size", "micro-batch", 1),
        _number("gradient_accumulation_steps", "micro-batches per step", 8),
        _choose("precision", "precision", "bf16-amp", _PRECISION),
        _choose("checkpointing", "activation checkpointing", "selective", CHECKPOINTINGS),
        _number("tensor", "tensor parallel", 1),
        _number("pipeline", "pipeline stages", 1),
        _number("context", "context parallel", 1),
        _number("expert", "expert parallel", 1),
        _choose(
            "zero",
            "data ranks shard",
            "3",
            [
                ("0", "nothing (DDP)"),
                ("1", "optimizer (ZeRO-1)"),
                ("2", "+ gradients (ZeRO-2)"),
                ("3", "+ parameters (FSDP)"),
            ],
        ),
        _choose("engine", "engine", "torchtitan", ENGINES),
        *_RUN,
        _number("replicate", "groups of data ranks", 1, more=True),
        _choose("schedule", "pipeline schedule", "1f1b", SCHEDULES, more=True),
        _number("virtual_stages", "stages per rank", 1, more=True),
        _choose("context_method", "context ranks use", "ring", CONTEXTS, more=True),
        _switch("no_reshard_after_forward", "keep gathered parameters"),
        _switch("no_sequence_parallel", "no sequence parallelism"),
        _switch("tensor_overlap", "tensor messages in chunks"),
    ]


CONTROLS: dict[str, list[Control]] = {"one": _one(), "many": _many()}
EXPORT_NAMES = {
    "one": [(style, f"training script ({style})") for style in STYLES],
    "many": [(name, name) for name in EXPORTS],
}


def to_json() -> dict[str, Any]:
    """Return all that the page needs to draw its controls and the colors of memory."""
    longest = {name: limits(name)[0] for name in {*model_names(), *arch_names()}}
    return {
        "controls": {kind: [asdict(each) for each in controls] for kind, controls in CONTROLS.items()},
        "exports": EXPORT_NAMES,
        "longest": longest,
        "colors": dict(zip(CATEGORIES, COLORS, strict=True)) | {"communication buffers": "#444444"},
    }
