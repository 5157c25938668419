"""What a framework does where a published run does not say: its defaults."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Habits:
    """The defaults of one framework, in the words of a `Layout`.

    Attributes:
        precision, zero, recompute, schedule: see `Layout`.
        fused: whether it runs fused kernels, or compiles.
        attention: "eager" before 2022.
        layer_norm, gated, bias: of its own models, where only sizes are given.
        vocab: of its own models.
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


_MEGATRON = Habits("megatron", "bf16-amp", "zero1", schedule="interleaved", gated=False, layer_norm=True)
_TITAN = Habits("torchtitan", "bf16-amp", "zero3", "selective", fused=False, vocab=128256)
_LLAMA = Habits("megatron", "bf16-amp", "zero1", schedule="interleaved", vocab=128256)
_OLD_MEGATRON = Habits(
    "megatron",
    "fp16-amp",
    "none",
    "full",
    schedule="interleaved",
    sequence_parallel=False,
    gated=False,
    layer_norm=True,
)

# By the beginning of a line's id, which names its source.
HABITS = {
    "torchtitan": _TITAN,
    "ao": _TITAN,
    "kempnerforge": Habits("torchtitan", "bf16-amp", "zero3", "full", fused=False, vocab=128256),
    "automodel": Habits("torchtitan", "bf16", "zero3", fused=False),
    "torchtune": Habits("pytorch", "bf16", "zero3", "full", fused=False, vocab=128256),
    "llm-foundry": Habits("torchtitan", "bf16-amp", "zero3", fused=False, gated=False, layer_norm=True, vocab=50368),
    "fms-fsdp": Habits("torchtitan", "bf16-amp", "zero3", fused=True, vocab=32000),
    "megatron-lm": _MEGATRON,
    "megatron-bridge": _LLAMA,
    "nemo": _LLAMA,
    "calculon": _OLD_MEGATRON,
    "vtrain": Habits(
        "megatron", "fp16-amp", "none", "full", sequence_parallel=False, attention="eager", gated=False, layer_norm=True
    ),
    "internevo": Habits("megatron", "bf16-amp", "zero1", fused=False, vocab=103168),
    "colossalai": Habits("torchtitan", "bf16-amp", "zero1", fused=False, vocab=32000),
    "easycontext": Habits("torchtitan", "bf16", "zero3", "full", fused=False, vocab=32000),
}
USUAL = Habits("torchtitan", "bf16-amp", "zero3", fused=True)


def habits_of(line_id: str) -> tuple[str, Habits]:
    """Return the framework that the id of a line names, and its habits; those of no framework are called "usual"."""
    source = str(line_id).rpartition("-")[0]
    return (source, HABITS[source]) if source in HABITS else ("usual", USUAL)
