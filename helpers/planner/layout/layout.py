"""A layout: how the ranks of a cluster share one training step of a decoder."""

from dataclasses import asdict, dataclass
from typing import Any

from ..config import ENGINES, PRECISIONS, ParallelConfig, RecipeError, TrainingConfig, check_known, check_range
from .arch import Arch

RECOMPUTATIONS = ("none", "selective", "full")
ATTENTIONS = ("fused", "cudnn", "flash", "fused-2023", "eager")
LOSSES = ("in-place", "fused", "te")
DISPATCHERS = ("all-to-all", "all-gather")
LORA_TARGETS = ("attention", "all")
_AT_LEAST_ONE = ("micro_batch_size", "micro_batches", "seq", "recompute_every", "expert_tensor")
_OF_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj", "qkv", "proj", "linear_qkv", "linear_proj"}
_OF_ATTENTION |= {"c_attn", "query_key_value"}
_OF_PERCEPTRON = {"gate_proj", "up_proj", "down_proj", "linear_fc1", "linear_fc2", "fc1", "fc2", "c_fc"}


@dataclass(frozen=True)
class Layout(ParallelConfig):
    """One way to spread one training step of a decoder over GPUs: the ranks, the model's sizes, and what they do.

    Attributes:
        arch: the model's sizes.
        micro_batch_size: sequences in a micro-batch of one data rank.
        micro_batches: in one optimizer step, of one data rank.
        seq: tokens in a sequence.
        precision, compile, cuda_graphs, engine: as in `TrainingConfig`.
        recompute: what the backward pass computes again: nothing, "selective" (cheap parts), "full" blocks.
        recompute_every: only every so many blocks are recomputed.
        attention: "fused", "fused-2023", or "eager": scores in memory, with dropout, as before 2022; "cudnn" is the
            fused kernel that reads and writes tokens in megatron's order, (S, B, D), so that nothing is copied; "flash"
            is FlashAttention-2, which on Hopper is slower than the fused kernel that megatron takes.
        dropout: of the residual stream: after the embedding, attention and perceptron; each keeps a mask.
        transformer_engine: whether megatron runs its kernels, as it does unless this is False: tensor ranks keep the
            output of norms, the loss works in place, and matmuls with `wgrad_fusion` add weights' gradients to their
            buffer and return a dummy.
        attention_mask: whether first and last stage hold a mask of (B, 1, S, S) bytes that no kernel reads.
        deterministic: whether PyTorch takes its reproducible algorithms.
        large_workspace: whether cuBLAS has the larger workspace that these want (":4096:8").
        data_overlap: whether gradients are added up, and weights gathered, beside passes; else after the last one.
        lora_rank: of adapters, which alone are trained; 0 trains the whole model.
        lora_targets: which layers have one: those of "attention", or "all" of a block.
        lora_dropout: in front of each adapter; keeps a mask.
        four_bits: whether the matmuls of an 8-bit precision run in 4 bits (NVFP4, MXFP4) on a GPU that has units for
            that; memory is planned as in 8 bits.
        fp8_params: whether the blocks' weights, which are then not trained, have one byte each.
        own_modules: whether megatron runs its own layers in place of Transformer Engine's.
        packed: whether queries, keys and values come from one layer, as in Megatron, and gate and up; their tensors
            then share memory.
        head_dummy: whether a head whose matmuls wait returns a dummy gradient of Transformer Engine, as Megatron's has
            done since its commit e7c55de99e. Where nothing waits, its weight's gradient stands for the dummy.
        narrow_gradients: whether megatron adds up gradients in 16 bits, and widens them for the update.
        buffer_passes: whether megatron goes through the whole buffer of a rank's gradients in each step to set it to
            zero, to look for NaN, and, before ranks add theirs up, to divide it by their number.
        loss: of megatron: "in-place"; "fused", whose compiled parts do not work in place; or "te": Transformer Engine's
            kernel, which leaves the gradient in the place of the logits.
        deferred_logits: of so many micro-batches, megatron's last stage keeps the gradients of the logits until all
            passes are done; -1 for all.
        micro_batch_group: how many micro-batches an interleaved stage takes before the next one; 0 for `pipeline`.
        deepspeed: whether megatron's ranks run under DeepSpeed's pipeline engine. Its FP16 adds up gradients in 16
            bits; its `BF16_Optimizer` in an FP32 vector, beside which those of the last pass live on until the next
            backward pass (`update_hp_grads(clear_lp_grads=False)` in its runtime/pipe/engine.py).
        dispatcher: how megatron's ranks bring tokens to experts: "all-to-all" sends each token to the ranks that it
            chose; "all-gather" gives every rank all tokens of its expert group (`gathered.py`).
        expert_tensor: ranks that split each expert; all-gather alone has them.
        grouped_experts: whether all-gather's experts are multiplied by Transformer Engine's grouped matmuls, which
            have four more workspaces, and not one by one. All-to-all's always are.
        ends_as_blocks: whether the embedding and the head count as a block each where stages get equal shares.
        stage_sizes: how many blocks each stage has, in the model's order; empty for equal shares.
        target_seq: tokens that the decoder of an encoder-decoder writes; 0 for as many as `seq`, which its encoder
            reads.
        softmax_fusion: whether eager attention has Megatron's fused softmax; without, it keeps the shares in FP32.

    Raises:
        RecipeError: values that are unknown, or cannot be combined.
    """

    arch: Arch
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
    dropout: float = 0.0
    transformer_engine: bool | None = None
    wgrad_fusion: bool = True
    attention_mask: bool = False
    deterministic: bool = False
    large_workspace: bool = False
    data_overlap: bool = True
    lora_rank: int = 0
    lora_targets: str = "attention"
    lora_dropout: float = 0.0
    fp8_params: bool = False
    four_bits: bool = False
    own_modules: bool = False
    packed: bool = False
    head_dummy: bool = False
    narrow_gradients: bool = False
    buffer_passes: bool = False
    loss: str = "in-place"
    deferred_logits: int = 0
    micro_batch_group: int = 0
    deepspeed: bool = False
    ends_as_blocks: bool = False
    stage_sizes: tuple[int, ...] = ()
    softmax_fusion: bool = True
    dispatcher: str = "all-to-all"
    expert_tensor: int = 1
    grouped_experts: bool = False
    target_seq: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.transformer_engine == (self.engine == "megatron"):
            object.__setattr__(self, "transformer_engine", None)  # so that another engine in its place has its own way
        known = {"precision": PRECISIONS, "recompute": RECOMPUTATIONS, "attention": ATTENTIONS, "engine": ENGINES}
        known |= {"lora_targets": LORA_TARGETS, "loss": LOSSES, "dispatcher": DISPATCHERS}
        check_known(self, known)
        check_range(self, dict.fromkeys(_AT_LEAST_ONE, 1))
        several = (
            self._conflicts_of_tensor_ranks,
            self._conflicts,
            self._conflicts_of_stages,
            self._conflicts_of_turns,
            self._conflicts_of_adapters,
            self._conflicts_of_dispatchers,
            self._conflicts_of_other_models,
        )
        for broken, message in (each for conflicts in several for each in conflicts()):
            if broken:
                raise RecipeError(message)

    def _conflicts_of_tensor_ranks(self) -> list[tuple[bool, str]]:
        """Return (whether it applies, what to change) for what tensor ranks cannot split."""
        arch, tensor = self.arch, self.tensor
        return [
            (arch.heads % tensor > 0, f"tensor {tensor} does not divide the {arch.heads} heads."),
            (arch.vocab < tensor, f"tensor {tensor} is larger than the vocabulary."),
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
                "tensor_overlap splits the all-gathers of tokens: add tensor ranks, and keep sequence_parallel.",
            ),
        ]

    def _conflicts_of_adapters(self) -> list[tuple[bool, str]]:
        """Return (whether it applies, what to change) for what adapters cannot be combined with."""
        adapters, arch = self.lora_rank > 0, self.arch
        return [
            (self.lora_rank < 0, f"lora_rank is {self.lora_rank}; it must be at least 0."),
            (adapters and self.engine != "megatron", "Adapters on ranks that split a model need engine megatron."),
            (adapters and bool(arch.experts or arch.kv_lora), "Adapters need a dense model and plain attention."),
            (self.fp8_params and not adapters, "fp8_params needs adapters, because 8-bit weights cannot be trained."),
            (self.fp8_params and self.precision != "fp8", "fp8_params needs precision fp8."),
            (self.deepspeed and self.engine != "megatron", "deepspeed needs engine megatron."),
        ]

    def _conflicts_of_dispatchers(self) -> list[tuple[bool, str]]:
        """Return (whether it applies, what to change) for how tokens come to experts."""
        arch, gathers = self.arch, self.dispatcher == "all-gather"
        group = self.expert * self.expert_tensor
        return [
            (
                gathers and not (self.engine == "megatron" and arch.experts),
                "All-gather is only for megatron's experts.",
            ),
            (gathers and arch.shared_experts > 0, "All-gather is not planned with shared experts."),
            (gathers and arch.bias, "All-gather is not planned for experts with biases."),
            (not gathers and self.expert_tensor > 1, "expert_tensor needs dispatcher all-gather."),
            (
                arch.moe_ffn % self.expert_tensor > 0,
                f"expert_tensor {self.expert_tensor} does not divide the width {arch.moe_ffn} of an expert.",
            ),
            (
                gathers and self.ranks // self.pipeline % group > 0,
                f"expert {self.expert} x expert_tensor {self.expert_tensor} do not divide the "
                f"{self.ranks // self.pipeline} ranks of a stage.",
            ),
        ]

    def _conflicts_of_other_models(self) -> list[tuple[bool, str]]:
        """Return (whether it applies, what to change) for models that are not plain decoders."""
        arch = self.arch
        both = arch.masked or arch.encoder_layers > 0
        return [
            (
                (both or arch.further > 0) and self.engine != "megatron",
                "BERT, T5 and multi-token prediction need engine megatron.",
            ),
            (
                both and bool(arch.experts or arch.kv_lora or arch.further or self.lora_rank),
                "BERT and T5 are planned without experts, latent attention, further tokens and adapters.",
            ),
            (arch.masked and arch.encoder_layers > 0, "An encoder-decoder is not masked: set one of both."),
            (both and self.context > 1, "Attention that is not causal is not planned with context ranks."),
            (
                arch.encoder_layers > 0 and self.pipeline > 1,
                "An encoder-decoder has one stage: Megatron does not train T5 in a pipeline.",
            ),
            (
                arch.encoder_layers > 0 and arch.kv_heads != arch.heads,
                "Attention between decoder and encoder needs as many heads of keys and values as of queries.",
            ),
            (
                self.target_seq > 0 and not arch.encoder_layers,
                "target_seq is of an encoder-decoder; this model is none.",
            ),
            (
                self.splits_tokens and self.target_seq % self.tensor > 0,
                f"target_seq {self.target_seq} is not a multiple of the {self.tensor} tensor ranks.",
            ),
        ]

    def _conflicts(self) -> list[tuple[bool, str]]:
        """Return (whether it applies, what to change) for each combination that cannot work."""
        arch, tensor = self.arch, self.tensor
        slices = self.context * tensor * (2 if self.context > 1 and self.context_method == "ring" else 1)
        local_heads = arch.heads // tensor
        return [
            (self.accumulate_whole and self.zero != "zero3", "accumulate_whole needs zero3."),
            (self.plain_ends and self.engine == "megatron", "plain_ends describes plain PyTorch loops, not megatron."),
            (self.transformer_engine and self.engine != "megatron", "transformer_engine needs engine megatron."),
            (
                self.virtual_stages > 1 and self.schedule in ("gpipe", "1f1b"),
                f"virtual_stages {self.virtual_stages} needs schedule interleaved or zero-bubble.",
            ),
            (
                self.virtual_stages > 1 and self.pipeline == 1,
                f"virtual_stages {self.virtual_stages} needs a pipeline of 2 or more.",
            ),
            (
                self.splits_backward and self.zero == "zero3" and self.reshard_after_forward,
                "A zero-bubble schedule finds no gradients of weights that were freed after the forward pass: "
                "set reshard_after_forward to False.",
            ),
            (
                self.seq % slices > 0,
                f"seq {self.seq} is not a multiple of {slices}, as context {self.context} and tensor {tensor} require.",
            ),
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
                "Beside tensor ranks, each rank sends its own tokens to experts: keep sequence_parallel.",
            ),
            (
                self.zero == "zero3" and self.engine == "megatron",
                "megatron shards the optimizer's state: use zero1, or engine torchtitan for zero3.",
            ),
            (
                self.attention == "eager" and self.context > 1,
                "Eager attention is not planned with context ranks.",
            ),
            (self.recompute == "none" and self.recompute_every > 1, "recompute_every needs recompute full."),
        ]

    def _conflicts_of_stages(self) -> list[tuple[bool, str]]:
        """Return (whether it applies, what to change) for the blocks of each stage."""
        layers, stages, sizes = self.arch.layers, self.pipeline * self.virtual_stages, self.stage_sizes
        return [
            (
                not sizes and stages > layers + (2 if stages > 2 else 0),
                f"{stages} stages need at least {stages - 2} layers; the model has {layers}.",
            ),
            (
                bool(sizes) and (len(sizes) != stages or sum(sizes) != layers or min(sizes) < 0),
                f"stage_sizes {list(sizes)} must be {stages} numbers, one per stage, with a sum of {layers} layers.",
            ),
            (0 in sizes[1:-1], f"stage_sizes {list(sizes)}: only the first and the last stage can be without a block."),
            (bool(sizes) and self.ends_as_blocks, "Give either stage_sizes or ends_as_blocks."),
        ]

    def _conflicts_of_turns(self) -> list[tuple[bool, str]]:
        """Return (whether it applies, what to change) for the turns of an interleaved schedule."""
        return [
            (
                self.interleaves and not self.micro_batch_group and self.micro_batches % self.pipeline > 0,
                f"The interleaved schedule takes micro-batches in groups of {self.pipeline}; "
                f"{self.micro_batches} is not a multiple of that.",
            ),
            (
                self.interleaves and 0 < self.micro_batch_group < self.pipeline,
                f"micro_batch_group is {self.micro_batch_group}; it must be at least the {self.pipeline} stages.",
            ),
            (
                self.interleaves and 0 < self.micro_batches % (self.micro_batch_group or 1) < self.pipeline,
                f"{self.micro_batches} micro-batches in groups of {self.micro_batch_group} leave a group that is "
                f"smaller than the {self.pipeline} stages.",
            ),
        ]

    @property
    def uses_transformer_engine(self) -> bool:
        """Whether Transformer Engine's kernels run: megatron's, unless `transformer_engine` says that they do not."""
        return self.engine == "megatron" and self.transformer_engine is not False

    @property
    def expert_shards(self) -> int:
        """Ranks that split the state of an expert's parameters."""
        return max(1, super().expert_shards // self.expert_tensor)

    @property
    def tokens(self) -> int:
        """Tokens of one optimizer step over all ranks; of an encoder-decoder those that it reads."""
        return self.data * self.micro_batch_size * self.micro_batches * self.seq

    @property
    def flops_per_token(self) -> float:
        """FLOPs of forward and backward for a token; weights that are not trained have no gradients to compute."""
        whole = self.arch.flops_per_token(self.seq, self.target_seq)
        return whole - 2.0 * self.arch.count(active=True) if self.lora_rank else whole

    @property
    def interleaves(self) -> bool:
        """Whether a pipeline rank takes its stages in turns."""
        return self.schedule == "interleaved" and self.pipeline > 1

    @property
    def local_seq(self) -> int:
        """Tokens of a sequence on one context rank."""
        return self.seq // self.context

    def stage_layers(self) -> list[list[int]]:
        """Return the blocks of each stage in order; early stages take one more where they do not divide evenly.

        Where there is a stage or two more than blocks, the head is a stage by itself, and the embedding.
        """
        stages = self.pipeline * self.virtual_stages
        ends = 2 if self.ends_as_blocks and stages > 1 else 0
        layers = self.arch.encoder_layers + self.arch.layers
        least, more = divmod(layers + ends, stages)
        first = stages - layers - 1  # of the stages with a block, where not all have one
        sizes = [least + (stage < more) for stage in range(stages)]
        sizes = [size - bool(ends and stage in (0, stages - 1)) for stage, size in enumerate(sizes)]
        if first >= 0:
            sizes = [int(first <= stage < stages - 1) for stage in range(stages)]
        sizes = list(self.stage_sizes) or sizes
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
        parts += [f"LoRA r={self.lora_rank}"] if self.lora_rank else []
        every = f" every {self.recompute_every}" if self.recompute_every > 1 else ""
        parts += [f"recompute {self.recompute}{every}"] if self.recompute != "none" else []
        return ", ".join(parts)


def layout_of(config: TrainingConfig, arch: Arch) -> Layout:
    """Return the layout by which a decoder of these sizes is trained as `config` says.

    Raises:
        RecipeError: a decoder's blocks cannot be trained so; the message says what to change.
    """
    plain = config.only_in_a_plain_loop
    for refused, message in (
        (
            config.lora_rank > 0 and config.engine != "megatron",
            "train all weights: adapters (lora_rank) need engine megatron, or engine pytorch and only data ranks.",
        ),
        (
            config.quantize != "none",
            "do not split a quantized base, whose weights are packed as a unit: use only data ranks, with zero 0 or 3.",
        ),
        (
            config.optimizer != "adamw",
            f"update with AdamW: {config.optimizer} needs engine pytorch and only data ranks.",
        ),
        (bool(plain), f"do not support these, which need engine pytorch and only data ranks: {', '.join(plain)}."),
        (config.optimizer_impl != "fused", "use the fused AdamW: set optimizer_impl to fused."),
        (config.checkpointing == "sqrt", "recompute blocks one by one: use full, every-2 and so on."),
    ):
        if refused:
            only = "; a mixture of experts is planned in no other way, so leave it out." if arch.experts else ""
            message = message.removesuffix(".") + only if only else message
            raise RecipeError(f"Ranks that split a model, and engines for many GPUs, {message}")
    return Layout(
        arch,
        **asdict(config.parallel),
        micro_batch_size=config.micro_batch_size,
        micro_batches=config.gradient_accumulation_steps,
        seq=config.seq,
        precision=config.precision,
        recompute="full" if config.stride else config.checkpointing,
        recompute_every=config.stride or 1,
        attention={"sdpa": "fused"}.get(config.attention, config.attention),
        compile=config.compile,
        cuda_graphs=config.cuda_graphs,
        engine=config.engine,
        lora_rank=config.lora_rank,
        lora_targets=places(config.lora_targets or "attention"),
        lora_dropout=config.lora_dropout,
        fp8_params=config.lora_rank > 0 and config.precision == "fp8",
    )


def places(said: Any) -> str:
    """Return which layers have adapters, "attention" or "all", from these words or from the names of layers.

    Raises:
        RecipeError: they are not those of attention, or of a whole block.
    """
    names = {said} if isinstance(said, str) else set(map(str, said)) if isinstance(said, list | tuple) else {str(said)}
    if names <= {"all", "all-linear"} or (names <= _OF_ATTENTION | _OF_PERCEPTRON and names & _OF_PERCEPTRON):
        return "all"
    if names == {"attention"} or (names and names <= _OF_ATTENTION):
        return "attention"
    words = ", ".join(map(str, said)) if isinstance(said, list | tuple) else repr(said)
    raise RecipeError(f"lora_targets is {words}; use attention or all, or the names of linear layers of a block.")
