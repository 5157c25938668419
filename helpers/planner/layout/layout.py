"""A layout: how the ranks of a cluster share one training step."""

from dataclasses import dataclass

from ..recipe import MOST, RecipeError
from .arch import Arch

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")
ZEROS = ("none", "zero1", "zero2", "zero3")
CONTEXTS = ("ring", "all-to-all")
PRECISIONS = ("fp32", "bf16", "bf16-amp", "fp16-amp", "fp8")
RECOMPUTATIONS = ("none", "selective", "full")
ATTENTIONS = ("fused", "fused-2023", "eager")
ENGINES = ("torchtitan", "megatron", "pytorch")
MOST_GPUS = 65536


@dataclass(frozen=True)
class Layout:
    """One way to spread one training step over GPUs.

    The ranks form a grid: pipeline x replicate x shard x context x tensor. Experts take their ranks from all but the
    pipeline's: `expert` must divide their product. An expert itself is never split.

    Attributes:
        arch: the model's sizes.
        tensor: ranks that split each product between them.
        sequence_parallel: whether they split norms and residuals by tokens as well.
        tensor_overlap: whether they gather and reduce those tokens in chunks, beside products.
        pipeline: stages; each holds consecutive blocks.
        schedule, virtual_stages: the order of micro-batches, and how many pieces of the model a rank holds.
        context, context_method: ranks that split each sequence; keys and values travel round a "ring", or heads are
            exchanged for tokens ("all-to-all").
        expert: ranks that split the experts.
        shard, replicate: ranks of the data dimension that split state, and how many such groups there are.
        zero: what `shard` splits: "zero1" the optimizer's state, "zero2" gradients, too, "zero3" parameters, too.
        reshard_after_forward: whether zero3 frees gathered parameters between forward and backward.
        accumulate_whole: whether zero3 adds up whole gradients, in FP32, and reduces them once a step.
        plain_ends: whether embedding and loss are those of a plain loop around blocks that tensor ranks split: each
            rank holds the whole embedding and whole rows of logits, in the products' dtype; in pipelines all of the
            head, too.
        micro_batch_size: sequences in a micro-batch of one data rank.
        micro_batches: in one optimizer step, of one data rank.
        seq: tokens in a sequence.
        precision: "fp32"; "bf16": weights and all; "bf16-amp", "fp16-amp": 16-bit products, FP32 weights; "fp8": the
            same with 8-bit products.
        recompute: what the backward pass computes again: nothing, "selective" (cheap parts), "full" blocks.
        recompute_every: only every so many blocks are recomputed.
        attention: "fused"; "fused-2023", FlashAttention-2, which is half as fast on GPUs after Ampere as kernels
            made for them (arXiv 2407.08608); or "eager": scores in memory, with dropout, as before 2022.
        compile: chains of operations are fused.
        cuda_graphs: the host launches recorded graphs, not operations, and holds nobody up.
        engine: whose habits: "megatron" keeps 16-bit weights beside FP32 masters and FP32 gradients in one buffer;
            "torchtitan" FP32 weights, cast as they are gathered; "pytorch" autocast.

    Raises:
        RecipeError: values that are unknown, or cannot be combined.
    """

    arch: Arch
    tensor: int = 1
    sequence_parallel: bool = True
    tensor_overlap: bool = False
    pipeline: int = 1
    schedule: str = "1f1b"
    virtual_stages: int = 1
    context: int = 1
    context_method: str = "ring"
    expert: int = 1
    shard: int = 1
    replicate: int = 1
    zero: str = "zero3"
    reshard_after_forward: bool = True
    accumulate_whole: bool = False
    plain_ends: bool = False
    micro_batch_size: int = 1
    micro_batches: int = 1
    seq: int = 4096
    precision: str = "bf16-amp"
    recompute: str = "none"
    recompute_every: int = 1
    attention: str = "fused"
    compile: bool = True
    cuda_graphs: bool = False
    engine: str = "torchtitan"

    def __post_init__(self) -> None:
        for name, known in (
            ("schedule", SCHEDULES),
            ("zero", ZEROS),
            ("context_method", CONTEXTS),
            ("precision", PRECISIONS),
            ("recompute", RECOMPUTATIONS),
            ("attention", ATTENTIONS),
            ("engine", ENGINES),
        ):
            if getattr(self, name) not in known:
                raise RecipeError(f"{name} is {getattr(self, name)!r}; choose one of {', '.join(known)}.")
        for name in _COUNTS:
            if not 1 <= getattr(self, name) <= MOST:
                raise RecipeError(f"{name} is {getattr(self, name)}; it must be at least 1 and at most {MOST:,}.")
        if self.ranks > MOST_GPUS:
            raise RecipeError(f"The dimensions multiply to {self.ranks:,} ranks; at most {MOST_GPUS:,} are planned.")
        for broken, message in [*self._conflicts_of_tensor_ranks(), *self._conflicts()]:
            if broken:
                raise RecipeError(message)

    def _conflicts_of_tensor_ranks(self) -> list[tuple[bool, str]]:
        """Return (whether it applies, what to change) for what tensor ranks cannot split."""
        arch, tensor = self.arch, self.tensor
        return [
            (arch.heads % tensor > 0, f"tensor {tensor} does not divide the {arch.heads} heads."),
            (arch.vocab < tensor, f"tensor {tensor} is more than the vocabulary has words."),
            (
                max(arch.kv_heads, tensor) % min(arch.kv_heads, tensor) > 0,
                f"tensor {tensor} and the {arch.kv_heads} heads of keys and values do not divide each other.",
            ),
            (
                not arch.experts and arch.ffn % tensor > 0,
                f"tensor {tensor} does not divide the inner width {arch.ffn}.",
            ),
            (
                self.tensor_overlap and not self.splits_tokens,
                "tensor_overlap cuts gatherings of tokens: it needs tensor ranks and sequence_parallel.",
            ),
        ]

    def _conflicts(self) -> list[tuple[bool, str]]:
        """Return (whether it applies, what to change) for each combination that cannot work."""
        arch, tensor, stages = self.arch, self.tensor, self.pipeline * self.virtual_stages
        slices = self.context * tensor * (2 if self.context > 1 and self.context_method == "ring" else 1)
        local_heads = arch.heads // tensor
        return [
            (self.accumulate_whole and self.zero != "zero3", "accumulate_whole is a way of zero3."),
            (self.plain_ends and self.engine == "megatron", "plain_ends are those of PyTorch's loops, not megatron's."),
            (stages > arch.layers, f"{stages} stages need at least as many layers; the model has {arch.layers}."),
            (
                self.virtual_stages > 1 and self.schedule in ("gpipe", "1f1b"),
                f"virtual_stages {self.virtual_stages} needs schedule interleaved or zero-bubble.",
            ),
            (
                self.virtual_stages > 1 and self.pipeline == 1,
                f"virtual_stages {self.virtual_stages} needs a pipeline of 2 or more.",
            ),
            (
                self.schedule == "interleaved" and self.pipeline > 1 and self.micro_batches % self.pipeline > 0,
                f"The interleaved schedule takes micro-batches in groups of {self.pipeline}; "
                f"{self.micro_batches} is no multiple.",
            ),
            (
                self.splits_backward and self.zero == "zero3" and self.reshard_after_forward,
                "A zero-bubble schedule finds no gradients of weights that were freed after the forward pass: "
                "set reshard_after_forward to False.",
            ),
            (self.seq % slices > 0, f"seq {self.seq} is no multiple of {slices}, as context and tensor want it."),
            (
                self.context > 1 and self.context_method == "all-to-all" and local_heads % self.context > 0,
                f"All-to-all over {self.context} ranks does not divide the {local_heads} heads of a tensor rank.",
            ),
            (self.expert > 1 and not arch.experts, "expert needs a mixture of experts; this model is dense."),
            (
                bool(arch.experts) and arch.experts % self.expert > 0,
                f"expert {self.expert} does not divide the {arch.experts} experts.",
            ),
            (
                self.ranks // self.pipeline % self.expert > 0,
                f"expert {self.expert} does not divide the {self.ranks // self.pipeline} ranks of a stage.",
            ),
            (
                bool(arch.experts) and tensor > 1 and not self.sequence_parallel,
                "Experts beside tensor ranks need sequence_parallel: each rank sends its own tokens.",
            ),
            (
                self.zero == "zero3" and self.engine == "megatron",
                "megatron shards the optimizer's state: use zero1, or engine torchtitan for zero3.",
            ),
            (
                self.attention == "eager" and (self.context > 1 or bool(arch.kv_lora)),
                "Eager attention is planned without context ranks and latent attention.",
            ),
            (self.recompute == "none" and self.recompute_every > 1, "recompute_every needs recompute full."),
        ]

    @property
    def data(self) -> int:
        """Ranks with different sequences."""
        return self.shard * self.replicate

    @property
    def ranks(self) -> int:
        """GPUs of the layout."""
        return self.tensor * self.pipeline * self.context * self.data

    @property
    def shards(self) -> int:
        """Ranks that split a dense parameter's state: the context ranks have the same parameters and join in."""
        return self.shard * self.context

    @property
    def expert_shards(self) -> int:
        """Ranks that split the state of an expert's parameters."""
        return max(1, self.shards * self.tensor // self.expert)

    @property
    def tokens(self) -> int:
        """Tokens of one optimizer step over all ranks."""
        return self.data * self.micro_batch_size * self.micro_batches * self.seq

    @property
    def local_seq(self) -> int:
        """Tokens of a sequence on one context rank."""
        return self.seq // self.context

    @property
    def splits_tokens(self) -> bool:
        """Whether the tensor ranks split norms and residuals."""
        return self.sequence_parallel and self.tensor > 1

    @property
    def splits_backward(self) -> bool:
        """Whether the stages make gradients of inputs and of weights at different times."""
        return self.schedule == "zero-bubble" and self.pipeline > 1

    def stage_layers(self) -> list[list[int]]:
        """Return the blocks of each stage in order; early stages take one more where they do not divide evenly."""
        stages = self.pipeline * self.virtual_stages
        least, more = divmod(self.arch.layers, stages)
        sizes = [least + (stage < more) for stage in range(stages)]
        starts = [sum(sizes[:stage]) for stage in range(stages)]
        return [list(range(start, start + size)) for start, size in zip(starts, sizes, strict=True)]

    @property
    def summary(self) -> str:
        """The layout in one line."""
        data = {"none": "DDP", "zero3": "FSDP"}.get(self.zero, self.zero.upper().replace("ZERO", "ZeRO-"))
        parts = [f"{data} {self.shard}" + (f" x {self.replicate}" if self.replicate > 1 else "")]
        parts += [f"TP {self.tensor}" + ("" if self.sequence_parallel else " without SP")] if self.tensor > 1 else []
        names = {"zero-bubble": "zero-bubble", "gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "interleaved"}
        stage = f"PP {self.pipeline} {names[self.schedule]}"
        virtual = f" x {self.virtual_stages}" if self.virtual_stages > 1 else ""
        parts += [stage + virtual] if self.pipeline > 1 else []
        parts += [f"CP {self.context} {self.context_method}"] if self.context > 1 else []
        parts += [f"EP {self.expert}"] if self.expert > 1 else []
        parts += [f"batch {self.micro_batch_size} x {self.micro_batches}"]
        every = f" every {self.recompute_every}" if self.recompute_every > 1 else ""
        parts += [f"recompute {self.recompute}{every}"] if self.recompute != "none" else []
        return ", ".join(parts)


_COUNTS = (
    "tensor",
    "pipeline",
    "virtual_stages",
    "context",
    "expert",
    "shard",
    "replicate",
    "micro_batch_size",
    "micro_batches",
    "seq",
    "recompute_every",
)
