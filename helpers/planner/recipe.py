"""A recipe: everything about a training step that decides how much memory it takes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a recipe is words and numbers; PyTorch takes seconds to import
    import torch

PRECISIONS = ("fp32", "bf16", "fp16-amp", "bf16-amp")
OPTIMIZERS = ("adamw", "adam", "sgd", "sgd-momentum", "adamw-8bit", "adamw-8bit-paged", "adafactor")
IMPLEMENTATIONS = ("foreach", "fused", "for-loop")
LORA_DTYPES = ("fp32", "weights")
QUANTIZATIONS = ("none", "nf4", "nf4-dq", "int8")
ATTENTIONS = ("sdpa", "eager")
CHECKPOINTINGS = ("none", "every", "every-2", "every-3", "sqrt")
SHARDINGS = ("none", "zero1", "zero2", "zero3")
OFFLOADS = ("none", "optimizer", "all")
MOST = 2**24  # of a batch, a sequence, micro-batches: far beyond any use, and far below overflow
MOST_RANKS = 4096


class RecipeError(ValueError):
    """A recipe that cannot work; the message says what to change."""


@dataclass(frozen=True)
class Recipe:
    """One way to train one model.

    Attributes:
        model: a name of the catalog, or the path of a Hugging Face `config.json`.
        micro_batch_size: sequences or images in a micro-batch, on one GPU.
        seq: tokens in a sequence (language models).
        image_size: pixels a side (image classifiers); 0 takes the model's own.
        precision: "fp32"; "bf16": weights and all in BF16; "fp16-amp", "bf16-amp": FP32 weights under autocast.
        optimizer, optimizer_impl: which, and in which of PyTorch's implementations. What is "paged" keeps its state in
            memory that GPU and host share: it leaves the GPU as far as there is no room, and comes back for the update.
        lora_rank: rank of the LoRA adapters; 0 trains the whole model.
        lora_alpha: scale of the adapters; 0 takes twice the rank. It does not change memory.
        lora_targets: names of the linear layers that get an adapter.
        lora_dropout: dropout in front of each adapter.
        lora_dtype: of the adapters: "fp32", as PEFT has it by default, or that of the other "weights".
        quantize: the format of the frozen base's linear layers.
        attention: "sdpa" (fused) or "eager" (the scores are materialised).
        checkpointing: which blocks are recomputed: "every" one, every second, every third, or in "sqrt" many segments.
        gradient_accumulation_steps: micro-batches in one optimizer step.
        compile: `torch.compile` fuses chains of operations of model and loss: what only a chain uses is not written.
        step_in_backward: update each parameter as soon as its gradient is complete, and free the gradient.
        set_to_none: free the gradients after the step, as `zero_grad` does by default; False zeroes them in place.
        ranks, shard: GPUs, and what is sharded over them: nothing (DDP), or ZeRO stage 1, 2, 3.
        offload: what host memory holds: nothing, the optimizer, or everything but the current layer.
        expandable_segments: the allocator's option of that name.

    Raises:
        RecipeError: values that are unknown, or cannot be combined.
    """

    model: str
    micro_batch_size: int = 1
    seq: int = 512
    image_size: int = 0
    precision: str = "bf16"
    optimizer: str = "adamw"
    optimizer_impl: str = "foreach"
    lora_rank: int = 0
    lora_alpha: float = 0
    lora_targets: Sequence[str] = ()
    lora_dropout: float = 0.0
    lora_dtype: str = "fp32"
    quantize: str = "none"
    attention: str = "sdpa"
    checkpointing: str = "none"
    gradient_accumulation_steps: int = 1
    compile: bool = False
    step_in_backward: bool = False
    set_to_none: bool = True
    ranks: int = 1
    shard: str = "none"
    offload: str = "none"
    expandable_segments: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "lora_targets", tuple(self.lora_targets))  # a list would not hash
        for name, known in (
            ("precision", PRECISIONS),
            ("optimizer", OPTIMIZERS),
            ("optimizer_impl", IMPLEMENTATIONS),
            ("lora_dtype", LORA_DTYPES),
            ("quantize", QUANTIZATIONS),
            ("attention", ATTENTIONS),
            ("checkpointing", CHECKPOINTINGS),
            ("shard", SHARDINGS),
            ("offload", OFFLOADS),
        ):
            if getattr(self, name) not in known:
                raise RecipeError(f"{name} is {getattr(self, name)!r}; choose one of {', '.join(known)}.")
        for name, least in (
            ("micro_batch_size", 1),
            ("seq", 1),
            ("gradient_accumulation_steps", 1),
            ("ranks", 1),
            ("lora_rank", 0),
            ("image_size", 0),
        ):
            most = MOST_RANKS if name == "ranks" else MOST
            if not least <= getattr(self, name) <= most:
                raise RecipeError(f"{name} is {getattr(self, name)}; it must be at least {least} and at most {most:,}.")
        if not math.isfinite(self.lora_alpha):
            raise RecipeError(f"lora_alpha is {self.lora_alpha}; it must be a number.")
        if not 0 <= self.lora_dropout < 1:
            raise RecipeError(f"lora_dropout is {self.lora_dropout}; it must be at least 0 and less than 1.")
        for broken, message in self._conflicts():
            if broken:
                raise RecipeError(message)

    def _conflicts(self) -> list[tuple[bool, str]]:
        """Return (whether it applies, what to change) for each combination that cannot work."""
        lora, quantized, alone = self.lora_rank > 0, self.quantize != "none", self.ranks == 1
        low_bit = self.optimizer.startswith("adamw-8bit")
        simple_impl = (low_bit or self.optimizer == "adafactor") and self.optimizer_impl == "fused"
        return [
            (quantized and not lora, "Quantized weights cannot be trained: add LoRA adapters (lora_rank)."),
            (quantized and self.precision == "fp32", "A quantized base computes in 16 bits: precision bf16 or an amp."),
            (quantized and self.shard != "none", "Sharding a quantized base is not simulated: use shard none."),
            (not lora and bool(self.lora_targets), "lora_targets were given without adapters: set lora_rank."),
            (not lora and self.lora_alpha != 0, "lora_alpha was given without adapters: set lora_rank."),
            (not lora and self.lora_dropout > 0, "lora_dropout was given without adapters: set lora_rank."),
            (not lora and self.lora_dtype != "fp32", "lora_dtype was given without adapters: set lora_rank."),
            (alone and self.shard != "none", f"{self.shard} shards over ranks: set ranks to 2 or more."),
            (
                self.step_in_backward and self.gradient_accumulation_steps > 1,
                "The step in the backward pass leaves no gradient to add to: set gradient_accumulation_steps to 1.",
            ),
            (
                self.step_in_backward and not self.set_to_none,
                "The step in the backward pass frees gradients: leave set_to_none at True.",
            ),
            (
                self.step_in_backward and (not alone or self.offload != "none"),
                "The step in the backward pass is simulated on one GPU without offload.",
            ),
            (simple_impl, f"{self.optimizer} has no fused implementation: use foreach or for-loop."),
            (
                self.shard in ("zero1", "zero2") and self.offload == "all",
                "Only zero3 takes the parameters off the GPU: use shard zero3, or offload optimizer.",
            ),
            (
                not self.set_to_none and (self.shard in ("zero2", "zero3") or self.offload == "all"),
                f"Only whole gradients are zeroed in place: keep set_to_none with {self.shard} or offload all.",
            ),
            (
                not alone and self.shard == "none" and self.offload == "all",
                "Offloading everything over several ranks means zero3: use shard zero3.",
            ),
            (low_bit and self.shard == "zero3", f"{self.optimizer} with zero3 is not simulated."),
            (self.paged and self.offload != "none", "Paged state leaves the GPU by itself: use offload none."),
            (self.optimizer == "adafactor" and self.shard == "zero3", "adafactor with zero3 is not simulated."),
        ]

    @property
    def paged(self) -> bool:
        """Whether the optimizer's state makes room on the GPU by itself."""
        return self.optimizer.endswith("-paged")

    @property
    def amp_dtype(self) -> "torch.dtype | None":
        """What autocast, or the mixed-precision policy of `fully_shard`, computes in."""
        import torch

        return {"bf16-amp": torch.bfloat16, "fp16-amp": torch.float16}.get(self.precision)

    @property
    def weight_dtype(self) -> "torch.dtype":
        """The dtype of the weights."""
        import torch

        return torch.bfloat16 if self.precision == "bf16" else torch.float32

    @property
    def summary(self) -> str:
        """The recipe in one line."""
        parts = [self.model, self.precision, f"batch {self.micro_batch_size}"]
        parts += [f"LoRA r={self.lora_rank}"] if self.lora_rank else ["full training"]
        parts += [self.quantize] if self.quantize != "none" else []
        parts += [self.optimizer if self.optimizer_impl == "foreach" else f"{self.optimizer} {self.optimizer_impl}"]
        parts += [f"checkpointing {self.checkpointing}"] if self.checkpointing != "none" else []
        parts += ["eager attention"] if self.attention == "eager" else []
        micro_batches = self.gradient_accumulation_steps
        parts += [f"accumulate {micro_batches}"] if micro_batches > 1 else []
        parts += ["compiled"] if self.compile else []
        parts += ["step in backward"] if self.step_in_backward else []
        parts += [f"{self.ranks} ranks, {'DDP' if self.shard == 'none' else self.shard}"] if self.ranks > 1 else []
        parts += [f"offload {self.offload}"] if self.offload != "none" else []
        return ", ".join(parts)
