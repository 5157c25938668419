"""One description of a run: what is trained and how (`TrainingConfig`), and over which ranks (`ParallelConfig`).

A run on one GPU is the run whose sizes are all 1. Two simulators answer, and the description alone decides which one.
The model of Hugging Face's library runs as a whole where data-parallel ranks train it in plain PyTorch. A decoder's
blocks run, a slice for each rank, where ranks split the model, or another engine trains it (`layout/`).
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a config is words and numbers; PyTorch takes seconds to import
    import torch

PRECISIONS = ("fp32", "bf16", "bf16-amp", "fp16-amp", "fp8")
IN_A_PLAIN_LOOP = (*PRECISIONS, "fp16")
BITSANDBYTES = ("adamw-8bit", "adamw-8bit-paged", "adamw-32bit-paged", "lion-8bit", "lion-8bit-paged")
OF_MATRICES = ("muon", "galore", "galore-8bit")  # that take a matrix of a block as a whole; AdamW takes the rest
OPTIMIZERS = ("adamw", "adam", "sgd", "sgd-momentum", "adafactor", "lion", *BITSANDBYTES, *OF_MATRICES)
METHODS = ("sft", "dpo", "grpo")
LOSSES = ("full", "chunked", "fused")
IMPLEMENTATIONS = ("foreach", "fused", "for-loop")
LORA_DTYPES = ("fp32", "weights")
QUANTIZATIONS = ("none", "nf4", "nf4-dq", "int8")
ATTENTIONS = ("sdpa", "eager", "fused-2023")
OFFLOADS = ("none", "optimizer", "all")
ENGINES = ("pytorch", "torchtitan", "megatron")
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")
ZEROS = ("none", "zero1", "zero2", "zero3")
CONTEXTS = ("ring", "all-to-all")
# Elements in the buffer of DeepSpeed's ZeRO-1 and ZeRO-2 while a backward pass runs: its default `reduce_bucket_size`,
# once, with `contiguous_gradients` as by default (deepspeed/runtime/zero/stage_1_and_2.py, `ipg_buffer`).
REDUCE_BUCKET = 500_000_000
MOST = 2**24  # of a batch, a sequence, micro-batches: far beyond any use, and far below overflow
MOST_GPUS = 65536


class RecipeError(ValueError):
    """A run that cannot work; the message says what to change."""


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """The ranks of a run, and what they share.

    They form a grid: pipeline x replicate x shard x context x tensor. Experts take their ranks from all but the
    pipeline's: `expert` must divide their product. An expert itself is never split.

    Attributes:
        tensor: ranks that split each matmul between them.
        sequence_parallel: whether they split norms and residuals by tokens as well.
        tensor_overlap: whether they gather and reduce those tokens in chunks, beside matmuls.
        pipeline: stages; each holds consecutive blocks.
        schedule, virtual_stages: the order of micro-batches, and how many pieces of the model a rank holds.
        context, context_method: ranks that split each sequence; keys and values travel round a "ring", or heads are
            exchanged for tokens ("all-to-all").
        expert: ranks that split the experts.
        shard, replicate: ranks of the data dimension that split state, and how many such groups there are.
        zero: what `shard` splits: "none" is DDP, "zero1" the optimizer's state, "zero2" gradients, too, "zero3"
            parameters, too.
        reshard_after_forward: whether zero3 frees gathered parameters between forward and backward.
        accumulate_whole: whether zero3 adds up whole gradients, in FP32, and reduces them once a step.
        plain_ends: whether embedding and loss are those of a plain loop around blocks that tensor ranks split: each
            rank holds the whole embedding and whole rows of logits, in the matmuls' dtype; in pipelines all of the
            head, too.

    Raises:
        RecipeError: values that are unknown or too large.
    """

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

    def __post_init__(self) -> None:
        check_known(self, {"schedule": SCHEDULES, "zero": ZEROS, "context_method": CONTEXTS})
        names = ("tensor", "pipeline", "virtual_stages", "context", "expert", "shard", "replicate")
        check_range(self, dict.fromkeys(names, 1))
        if self.ranks > MOST_GPUS:
            raise RecipeError(f"The dimensions multiply to {self.ranks:,} ranks; at most {MOST_GPUS:,} are planned.")

    @property
    def data(self) -> int:
        """Ranks with different sequences."""
        return self.shard * self.replicate

    @property
    def ranks(self) -> int:
        """GPUs of the run."""
        return self.tensor * self.pipeline * self.context * self.data

    @property
    def splits_the_model(self) -> bool:
        """Whether ranks hold different parts of the model or of a sequence."""
        return self.tensor * self.pipeline * self.context * self.expert > 1

    @property
    def shards(self) -> int:
        """Ranks that split a dense parameter's state: the context ranks have the same parameters and join in."""
        return self.shard * self.context

    @property
    def expert_shards(self) -> int:
        """Ranks that split the state of an expert's parameters."""
        return max(1, self.shards * self.tensor // self.expert)

    @property
    def splits_tokens(self) -> bool:
        """Whether the tensor ranks split norms and residuals."""
        return self.sequence_parallel and self.tensor > 1

    @property
    def splits_backward(self) -> bool:
        """Whether the stages make gradients of inputs and of weights at different times."""
        return self.schedule == "zero-bubble" and self.pipeline > 1


@dataclass(frozen=True)
class TrainingConfig:
    """One way to train one model.

    Attributes:
        model: a name of the catalog, or the path of a Hugging Face `config.json`.
        micro_batch_size: sequences or images in a micro-batch of one data rank.
        seq: tokens in a sequence (language models); of an encoder-decoder, on both sides unless `target_seq` says else.
        target_seq: tokens in what the decoder of an encoder-decoder writes; 0 for as many as `seq`.
        image_size: pixels a side (image classifiers); 0 takes the model's own.
        lengths: tokens in the sequences of one micro-batch after the other, each padded to its own longest; instead of
            `seq`, which is then the longest of all.
        packed: tokens in each of the documents that are packed into a sequence and do not attend to each other.
        precision: "fp32"; "bf16", "fp16": weights and all in 16 bits; "fp16-amp", "bf16-amp": FP32 weights, 16-bit
            matmuls; "fp8": the same with 8-bit matmuls.
        tf32: whether matmuls of FP32 numbers run in TF32, as `torch.set_float32_matmul_precision("high")` has it.
            Convolutions do so by PyTorch's default. Bytes stay the same.
        master_weights: the optimizer holds and updates an FP32 copy of 16-bit weights, as in DeepSpeed.
        optimizer, optimizer_impl: which, and in which of PyTorch's implementations. What is "paged" keeps its state in
            memory that GPU and host share: it leaves the GPU as far as there is no room, and comes back for the update.
        galore_rank: to which GaLore projects gradients.
        method: what a micro-batch is for: "sft" predicts tokens, "dpo" compares pairs of sequences (one pair for each
            of `micro_batch_size`), "grpo" weighs answers that the model has generated.
        reference: whether dpo and grpo compare with the model as it was: a copy of it, or the model without adapters.
        loss: "full" has the logits of all tokens in FP32, "chunked" those of a part of them, "fused" never writes those
            it does not need (Liger).
        dropout: of all layers that have one; None leaves the config's own.
        freeze, train_only: modules that are not trained; modules that alone are. Names, or the ends of names.
        channels_last: images and filters lie in memory channel by channel.
        lora_rank: rank of the LoRA adapters; 0 trains the whole model.
        lora_alpha: scale of the adapters; 0 takes twice the rank. It does not change memory.
        lora_targets: names of the linear layers that get an adapter.
        lora_dropout: dropout in front of each adapter.
        lora_dtype: of the adapters: "fp32" (PEFT's default) or "weights" (the dtype of the base's weights).
        dora: adapters change directions, and lengths are trained beside them (arXiv 2402.09353).
        modules_to_save: modules that are trained whole beside adapters.
        quantize: the format of the frozen base's linear layers.
        quantized_inputs: layers of 4 bits keep their inputs for the backward pass, as bitsandbytes did before 0.43.2;
            those of 8 bits still do.
        attention: "sdpa" (fused); "eager" (the scores are materialized); or "fused-2023", FlashAttention-2, which is
            half as fast on GPUs after Ampere as kernels made for them (arXiv 2407.08608).
        checkpointing: which blocks are recomputed: "none", "every" (or "full"), "every-2", "every-3" and so on, in
            "sqrt" many segments; or "selective": the cheap parts of every block.
        gradient_accumulation_steps: micro-batches of one data rank in one optimizer step.
        compile: `torch.compile` fuses chains of operations of model and loss: what only a chain uses is not written.
            What the backward pass needs of it is made again from the fewest bytes.
        step_in_backward: update each parameter as soon as its gradient is complete, and free the gradient.
        set_to_none: free the gradients after the step, as `zero_grad` does by default; False zeroes them in place.
        offload: what host memory holds: nothing, the optimizer, or everything but the current layer.
        expandable_segments: the allocator's option of that name.
        engine: who trains: "pytorch": a plain loop around the Hugging Face model; "torchtitan": FP32 weights, cast as
            they are gathered; "megatron": 16-bit weights beside FP32 masters, and FP32 gradients in one buffer.
        cuda_graphs: the host launches recorded graphs, not operations, and holds nobody up.
        parallel: over which ranks; by default on one GPU.

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
    dora: bool = False
    modules_to_save: Sequence[str] = ()
    quantize: str = "none"
    attention: str = "sdpa"
    checkpointing: str = "none"
    gradient_accumulation_steps: int = 1
    compile: bool = False
    step_in_backward: bool = False
    set_to_none: bool = True
    offload: str = "none"
    expandable_segments: bool = False
    engine: str = "pytorch"
    cuda_graphs: bool = False
    lengths: Sequence[int] = ()
    packed: int = 0
    master_weights: bool = False
    galore_rank: int = 128
    method: str = "sft"
    reference: bool = True
    loss: str = "full"
    dropout: float | None = None
    freeze: Sequence[str] = ()
    train_only: Sequence[str] = ()
    channels_last: bool = False
    tf32: bool = False
    quantized_inputs: bool = False
    target_seq: int = 0
    parallel: ParallelConfig = field(default_factory=ParallelConfig)

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        for name in ("lora_targets", "modules_to_save", "lengths", "freeze", "train_only"):
            set_field(self, name, tuple(getattr(self, name)))  # a list would not hash
        if self.lengths:
            set_field(self, "seq", max(self.lengths))
        set_field(self, "checkpointing", "every" if self.checkpointing == "full" else self.checkpointing)
        set_field(self, "attention", "sdpa" if self.attention == "fused" else self.attention)
        if isinstance(self.parallel, Mapping):  # as JSON has it
            set_field(self, "parallel", ParallelConfig(**self.parallel))
        check_known(
            self,
            {
                "precision": IN_A_PLAIN_LOOP,
                "optimizer": OPTIMIZERS,
                "optimizer_impl": IMPLEMENTATIONS,
                "method": METHODS,
                "loss": LOSSES,
                "lora_dtype": LORA_DTYPES,
                "quantize": QUANTIZATIONS,
                "attention": ATTENTIONS,
                "offload": OFFLOADS,
                "engine": ENGINES,
            },
        )
        if self.stride == 0 and self.checkpointing not in ("none", "selective", "sqrt"):
            raise RecipeError(
                f"checkpointing is {self.checkpointing!r}; choose one of none, selective, full, every-2, every-3, sqrt."
            )
        at_least_one = ("micro_batch_size", "seq", "gradient_accumulation_steps")
        check_range(self, {**dict.fromkeys((*at_least_one, "galore_rank"), 1), "lora_rank": 0, "image_size": 0})
        check_range(self, {"packed": 0, "target_seq": 0})
        if min(self.lengths, default=1) < 1:
            raise RecipeError(f"lengths are {', '.join(map(str, self.lengths))}; each must be at least 1.")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise RecipeError(f"dropout is {self.dropout}; it must be at least 0 and less than 1.")
        if not math.isfinite(self.lora_alpha):
            raise RecipeError(f"lora_alpha is {self.lora_alpha}; it must be a number.")
        if not 0 <= self.lora_dropout < 1:
            raise RecipeError(f"lora_dropout is {self.lora_dropout}; it must be at least 0 and less than 1.")
        for broken, message in [*self._conflicts(), *self._conflicts_of_adapters(), *self._conflicts_of_updates()]:
            if broken:
                raise RecipeError(message)

    def _conflicts_of_adapters(self) -> list[tuple[bool, str]]:
        """Return (whether it applies, what to change) for what adapters cannot be combined with."""
        lora, quantized = self.lora_rank > 0, self.quantize != "none"
        plain = {"lora_targets": (), "lora_alpha": 0, "lora_dropout": 0.0, "lora_dtype": "fp32"}
        plain |= {"dora": False, "modules_to_save": ()}
        return [
            (quantized and not lora, "Quantized weights cannot be trained: add LoRA adapters (lora_rank)."),
            (quantized and self.precision == "fp32", "A quantized base computes in 16 bits: precision bf16 or an amp."),
            *(
                (not lora and getattr(self, name) != value, f"{name} was given without adapters: set lora_rank.")
                for name, value in plain.items()
            ),
            (
                self.quantized_inputs and not self.quantize.startswith("nf4"),
                "quantized_inputs is about layers of 4 bits: set quantize to nf4 or nf4-dq.",
            ),
            (lora and bool(self.train_only), "Adapters train what they name: use modules_to_save for more."),
        ]

    def _conflicts_of_updates(self) -> list[tuple[bool, str]]:
        """Return (whether it applies, what to change) for what an optimizer cannot be combined with."""
        unfused = self.optimizer in (*BITSANDBYTES, *OF_MATRICES, "adafactor", "lion")
        return [
            (unfused and self.optimizer_impl == "fused", f"{self.optimizer} has no fused implementation: use foreach."),
            (
                self.optimizer in OF_MATRICES and self.shard == "zero3",
                f"{self.optimizer} works on whole matrices, which zero3 splits: use zero 0 to 2.",
            ),
            (self.paged and self.offload != "none", "Paged state leaves the GPU by itself: use offload none."),
            (
                self.master_weights and self.precision not in ("bf16", "fp16"),
                f"master_weights are copies of 16-bit weights: use precision bf16 or fp16, not {self.precision}.",
            ),
            (
                self.tf32 and self.precision != "fp32",
                f"tf32 is about matmuls of FP32 numbers: use precision fp32, not {self.precision}.",
            ),
            (self.master_weights and self.step_in_backward, "The step in the backward pass keeps no master_weights."),
            (self.method != "sft" and self.loss != "full", f"{self.method} reads all logits: use loss full."),
            (self.method == "sft" and not self.reference, "Only dpo and grpo have a reference: set method."),
            (
                self.target_seq > 0 and bool(self.lengths or self.packed),
                "target_seq is one length: leave lengths and packed out.",
            ),
            (self.packed > 0 and bool(self.lengths), "Packed sequences are all as long: give packed or lengths."),
            (
                self.packed > 0 and (self.seq % self.packed > 0 or self.attention == "eager"),
                "packed documents fill a sequence (seq is a multiple of them), and attention is not eager.",
            ),
        ]

    def _conflicts(self) -> list[tuple[bool, str]]:
        """Return (whether it applies, what to change) for each combination that cannot work."""
        alone = self.ranks == 1
        return [
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
            (
                self.shard in ("zero1", "zero2") and self.offload == "all",
                "Only zero3 takes the parameters off the GPU: use zero3, or offload optimizer.",
            ),
            (
                not self.set_to_none and (self.shard in ("zero2", "zero3") or self.offload == "all"),
                f"Only whole gradients are zeroed in place: keep set_to_none with {self.shard} or offload all.",
            ),
            (
                not alone and self.shard == "none" and self.offload == "all",
                "Offloading everything over several ranks means zero3: use zero3.",
            ),
        ]

    @property
    def ranks(self) -> int:
        """GPUs of the run."""
        return self.parallel.ranks

    @property
    def shard(self) -> str:
        """What is sharded over the data ranks; over one there is nothing to shard."""
        return self.parallel.zero if self.parallel.shard > 1 else "none"

    @property
    def stride(self) -> int:
        """Every how many blocks one is recomputed as a whole; 0 where none is, or not as a whole."""
        words, _, number = self.checkpointing.partition("-")
        if words != "every" or (number and not (number.isdecimal() and 1 <= int(number) <= MOST)):
            return 0
        return int(number or 1)

    @property
    def whole(self) -> bool:
        """Whether all parameters are trained, as engines for many GPUs train them: by AdamW, on the GPUs."""
        return not (self.lora_rank or self.only_in_a_plain_loop)

    @property
    def only_in_a_plain_loop(self) -> list[str]:
        """What is asked for that engines for many GPUs, as they are planned, do not do; by name."""
        names = [name for name, value in _PLAIN.items() if getattr(self, name) != value]
        return names + ["precision fp16"] * (self.precision == "fp16")

    @property
    def mean_seq(self) -> float:
        """Tokens in a sequence, on average over micro-batches."""
        return sum(self.lengths) / len(self.lengths) if self.lengths else self.seq

    @property
    def by_blocks(self) -> bool:
        """Whether a decoder's blocks are simulated, and not the Hugging Face model as a whole."""
        special = self.precision == "fp8" or self.attention == "fused-2023" or self.checkpointing == "selective"
        return self.parallel.splits_the_model or self.engine != "pytorch" or special or self.cuda_graphs

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

        return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.precision, torch.float32)

    def changed(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, as plain values."""
        values = _changed(self, TrainingConfig(self.model))
        return values | ({"parallel": _changed(self.parallel, ParallelConfig())} if "parallel" in values else {})

    @property
    def title(self) -> str:
        """The run in one line, with the names of the command's options."""
        return re.sub(r"checkpointing every(?!-)", "full checkpointing", self.summary)

    @property
    def summary(self) -> str:
        """The run in one line."""
        parts = [self.model, self.precision + " with TF32 matmuls" * self.tf32, f"batch {self.micro_batch_size}"]
        parts += [self.method.upper() + ("" if self.reference else " without a reference")] * (self.method != "sft")
        parts += [f"{'DoRA' if self.dora else 'LoRA'} r={self.lora_rank}"] if self.lora_rank else []
        parts += [f"with {', '.join(self.modules_to_save)}"] if self.modules_to_save else []
        parts += [f"only {', '.join(self.train_only)}"] if self.train_only else []
        parts += ["full training"] if not (self.lora_rank or self.train_only or self.freeze) else []
        parts += [f"without {', '.join(self.freeze)}"] if self.freeze else []
        parts += [self.quantize + " with kept inputs" * self.quantized_inputs] if self.quantize != "none" else []
        parts += [self.optimizer if self.optimizer_impl == "foreach" else f"{self.optimizer} {self.optimizer_impl}"]
        parts += ["FP32 masters"] if self.master_weights else []
        parts += [f"{self.loss} loss"] if self.loss != "full" else []
        parts += [f"checkpointing {self.checkpointing}"] if self.checkpointing != "none" else []
        parts += ["eager attention"] if self.attention == "eager" else []
        micro_batches = self.gradient_accumulation_steps
        parts += [f"accumulate {micro_batches}"] if micro_batches > 1 else []
        parts += ["compiled"] if self.compile else []
        parts += ["step in backward"] if self.step_in_backward else []
        parts += [f"{self.ranks} ranks, {'DDP' if self.shard == 'none' else self.shard}"] if self.ranks > 1 else []
        parts += [f"offload {self.offload}"] if self.offload != "none" else []
        return ", ".join(parts)


_PLAIN = {  # what engines for many GPUs do, as they are planned: field -> its value
    **dict.fromkeys(("step_in_backward", "expandable_segments", "master_weights", "channels_last", "dora"), False),
    "tf32": False,
    **dict.fromkeys(("lengths", "freeze", "train_only", "modules_to_save"), ()),
    **{"quantized_inputs": False, "target_seq": 0},
    **{"set_to_none": True, "image_size": 0, "optimizer": "adamw", "offload": "none", "quantize": "none"},
    **{"method": "sft", "loss": "full", "packed": 0, "dropout": None},
}


def _changed(config: Any, plain: Any) -> dict[str, Any]:
    pairs = ((f.name, getattr(config, f.name), getattr(plain, f.name)) for f in fields(config))
    return {name: value for name, value, default in pairs if value != default or name == "model"}


def check_known(config: Any, known: Mapping[str, Sequence[str]]) -> None:
    """Make sure that fields have one of their known values.

    Raises:
        RecipeError: one has not.
    """
    for name, values in known.items():
        if getattr(config, name) not in values:
            raise RecipeError(f"{name} is {getattr(config, name)!r}; choose one of {', '.join(values)}.")


def check_range(config: Any, least: Mapping[str, int]) -> None:
    """Make sure that fields are at least as large as `least` says, and at most `MOST`.

    Raises:
        RecipeError: one is not.
    """
    for name, smallest in least.items():
        if not smallest <= getattr(config, name) <= MOST:
            raise RecipeError(
                f"{name} is {getattr(config, name)}; it must be at least {smallest} and at most {MOST:,}."
            )
