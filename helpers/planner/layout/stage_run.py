"""Run the actions of one stage on fake tensors: up to three micro-batches forward and backward, and the update.

PyTorch's own autograd, checkpointing, optimizer and `fully_shard` run, on a rank's local slices; collectives are those
of a fake process group, or of `Wire`s that make tensors of the right shape. A step's first and last micro-batch are
unlike the others (gradients appear, and are reduced); all between are alike, and so are all steps from the second on.
"""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..simulate.contexts import default_modes, no_collector, resizing_counted
from ..simulate.fsdp import give_gradients, local_parts
from ..simulate.model import materialize
from ..simulate.quick_fake import QuickFakeMode
from .decoder import Experts, Stage
from .dtypes import LOW, weight_dtype
from .fsdp import label_gathered, process_group
from .gathered_experts import GatheredExperts
from .layout import Layout
from .parallelize import StageKind, parallelize
from .trace import Life, Moment, Place, Trace

FIRST, NEXT, LAST = "first", "next", "last"  # of a step's micro-batches; a single one is the last
BEFORE, FORWARD, BACKWARD, UPDATE = "before", "forward", "backward", "update"
ActionKey = tuple[str, str]


@dataclass
class StageRun:
    """What a stage's actions do.

    Attributes:
        actions: the places of each action in order, by ("forward", which) and ("backward", which): "first", "next" or
            "last" micro-batch; ("update", ""); and ("before", ""), in which the optimizer makes its state.
        parameters, expert_parameters: how many this rank trains, before sharding, without and within experts.
        lives: of the tensors, where megatron's allocator is to be played.
        repeats: how often more, in a stage that was not run whole, the block comes which `lives` have as number
            `repeated` of `blocks`.
    """

    actions: dict[ActionKey, list[Place]]
    parameters: int
    expert_parameters: int
    lives: Sequence[Life] = ()
    blocks: int = 0
    repeated: int = 0
    repeats: int = 0


def run_stage(layout: Layout, kind: StageKind, every: bool = False) -> StageRun:
    """Run a stage of `layout` and return what its actions do.

    Args:
        layout: of which stage.
        kind: what the stage consists of.
        every: run a step's first and last micro-batch and one between also where one stands for all: megatron's
            gradients are in a buffer from the first pass on.
    """
    names = micro_batches_of(layout.micro_batches)
    alone = layout.engine == "megatron" and not every
    with warnings.catch_warnings(), default_modes(), process_group(layout) as meshes:
        warnings.simplefilter("ignore")  # of libraries about fake weights
        trace = Trace(meshes.names)
        with no_collector(), QuickFakeMode(allow_non_fake_inputs=True), trace, resizing_counted(trace):
            hooks = torch.autograd.graph.saved_tensors_hooks(trace.pack, trace.unpack)
            with hooks:
                stage = parallelize(layout, kind, trace, meshes)
                training = _Training(layout, kind, stage, trace)
                training.run([LAST] if alone else names)
                places = trace.places(layout.lora_rank > 0)
                lives = trace.lives((BEFORE, "")) if layout.engine == "megatron" else []
                if layout.engine == "megatron" and layout.zero == "none" and not layout.deepspeed:
                    lives = _weight_by_weight(lives, training)
                if alone:
                    places, lives = _alike(places, lives, names)
                return StageRun(places, training.dense, training.expert, lives, kind.dense + kind.mixed)


def _weight_by_weight(lives: Sequence[Life], training: "_Training") -> list[Life]:
    """Return the lives of a stage whose optimizer, which has one vector here, has a tensor for each weight.

    So Megatron's has where its state is not sharded (`Float16OptimizerWithFloat16Params` in its optimizer.py).
    """
    vector = Life(training.own[0].nbytes, None, None)
    others = list(lives)
    for _ in ("copy", "first moment", "second moment"):
        others.remove(vector)
    sizes = [4 * weight.numel() for weight in training.trained]
    moments = [size for size in sizes for _ in range(2)]
    return [*others, *(Life(size, None, None) for size in (*sizes, *moments))]


def _alike(
    places: dict[ActionKey, list[Place]], lives: Sequence[Life], names: Sequence[str]
) -> tuple[dict[ActionKey, list[Place]], list[Life]]:
    """Return what several micro-batches do of which one was run."""
    passes = {key: own for key, own in places.items() if key[0] in (FORWARD, BACKWARD)}
    rest = {key: own for key, own in places.items() if key not in passes}
    several = {(kind, name): own for (kind, _), own in passes.items() for name in names}
    update = {key: rest.pop(key) for key in [(UPDATE, "")]}

    def moved(moment: Moment | None, name: str) -> Moment | None:
        return moment._replace(action=(moment.action[0], name)) if moment and moment.action in passes else moment

    copies = []
    for life in lives:
        own = any(moment and moment.action in passes for moment in (life.born, life.died))
        mine = names if own and life.born else names[:1]
        copies += [Life(life.nbytes, moved(life.born, name), moved(life.died, name)) for name in mine]
    return rest | several | update, copies


def weight_shapes(layout: Layout, kind: StageKind) -> set[tuple[int, int]]:
    """Return the distinct shapes of the weights that Transformer Engine multiplies with in a stage on a rank."""
    arch, ranks = layout.arch, layout.tensor
    gates = 2 if arch.gated else 1
    shapes = _latent_shapes(layout) if arch.kv_lora else _attention_shapes(layout)
    further = kind.last and arch.further > 0
    mixes = further and arch.is_moe(arch.layers - 1)
    inner = [arch.ffn // ranks] if kind.dense or (further and not mixes) else []
    inner += [arch.moe_ffn // layout.expert_tensor, arch.shared_ffn // ranks] if kind.mixed or mixes else []
    shapes |= {(arch.hidden // ranks, 2 * arch.hidden)} if further else set()
    wide = arch.heads * arch.head_dim // ranks
    shapes |= {(wide, arch.hidden), (2 * wide, arch.hidden)} if arch.encoder_layers else set()
    for width in filter(None, inner):
        shapes |= {(gates * width, arch.hidden), (arch.hidden, width)}
    return shapes


def dummy_shapes(layout: Layout, kind: StageKind) -> set[tuple[int, int]]:
    """Return the shapes of which Transformer Engine keeps a dummy gradient in a stage."""
    dummies = layout.uses_transformer_engine and layout.wgrad_fusion and not layout.lora_rank
    return weight_shapes(layout, kind) if dummies else set()


def dummy_bytes(layout: Layout, shapes: Iterable[tuple[int, int]]) -> int:
    """Return the bytes of dummies of these shapes."""
    return sum(rows * columns for rows, columns in shapes) * weight_dtype(layout).itemsize


def _attention_shapes(layout: Layout) -> set[tuple[int, int]]:
    arch, ranks = layout.arch, layout.tensor
    heads, kv_heads = arch.heads // ranks, max(1, arch.kv_heads // ranks)
    # Of the output; transposed it is the same memory.
    return {(heads * arch.head_dim, arch.hidden), ((heads + 2 * kv_heads) * arch.head_dim, arch.hidden)}


def _latent_shapes(layout: Layout) -> set[tuple[int, int]]:
    """Return those of latent attention; what makes vectors narrow is whole on each tensor rank."""
    arch = layout.arch
    heads = arch.heads // layout.tensor
    grown = heads * (arch.head_dim - arch.rope_dim + arch.values)
    shapes = {(arch.kv_lora + arch.rope_dim, arch.hidden), (grown, arch.kv_lora), (arch.hidden, heads * arch.values)}
    wide = heads * arch.head_dim
    return shapes | ({(arch.q_lora, arch.hidden), (wide, arch.q_lora)} if arch.q_lora else {(wide, arch.hidden)})


def micro_batches_of(count: int) -> list[str]:
    """Return which kinds of micro-batches a step of `count` has: those that are alike are run once."""
    return {1: [LAST], 2: [FIRST, LAST]}.get(count, [FIRST, NEXT, LAST])


class _Training:
    """A stage with memory, its optimizer and its micro-batches."""

    def __init__(self, layout: Layout, kind: StageKind, stage: Stage, trace: Trace) -> None:
        self.layout, self.kind, self.trace = layout, kind, trace
        self.low = LOW.get(layout.precision, torch.float32)
        mixtures = (m for m in stage.modules() if isinstance(m, Experts | GatheredExperts))
        experts = {id(weight) for mixture in mixtures for weight in mixture.weights()}
        self.expert = sum(p.numel() for p in stage.parameters() if id(p) in experts)
        self.dense = sum(p.numel() for p in stage.parameters() if p.requires_grad) - self.expert
        if layout.zero == "zero3":
            stage.to_empty(device="cpu")  # which is the fake tensors'
        else:
            materialize(stage)
        self.stage = stage
        stage.mark = trace.mark
        self.trained = [parameter for parameter in stage.parameters() if parameter.requires_grad]
        self.own, self.optimizer = self._make_optimizer()
        trace.watch(stage, [self.optimizer], names=False)
        self.kept: list[Tensor] = []
        if layout.engine == "megatron":
            self._keep_gradients_in_one_buffer()

    def _make_optimizer(self) -> tuple[list[Tensor], torch.optim.Optimizer]:
        """Return the tensors that this rank updates, and AdamW for them."""
        layout = self.layout
        if layout.zero == "zero3":
            own = local_parts(self.trained)
        elif layout.zero == "none" and layout.engine != "megatron":
            own = self.trained
        else:  # one flat FP32 vector: this rank's share of the stage's parameters
            shards = 1 if layout.zero == "none" else layout.shards
            share = -(-self.dense // shards) + -(-self.expert // max(1, min(shards, layout.expert_shards)))
            own = [torch.empty(share, requires_grad=True)]
            self.trace.track(own[0], "optimizer state")
        return own, torch.optim.AdamW(own, fused=True)

    def _keep_gradients_in_one_buffer(self) -> None:
        """Add each gradient to an FP32 buffer inside its matmul, as Transformer Engine's kernels do for Megatron.

        What they return to autograd in its place is a dummy; one is kept for each distinct shape of a weight
        (`get_dummy_wgrad` in Transformer Engine's module/base.py).
        """
        narrow = weight_dtype(self.layout) if self.layout.narrow_gradients else torch.float32
        self.buffer = torch.empty(self.dense + self.expert, dtype=narrow)
        self.trace.track(self.buffer, "gradients")
        if self.layout.deepspeed and not self.layout.narrow_gradients:
            self.of_last_pass = torch.empty(self.dense + self.expert, dtype=weight_dtype(self.layout))
            self.trace.track(self.of_last_pass, "gradients")
        shapes = dummy_shapes(self.layout, self.kind)
        self.dummies = [torch.empty(shape, dtype=weight_dtype(self.layout)) for shape in shapes]
        for dummy in self.dummies:
            self.trace.track(dummy, "gradients")

        def drop(parameter: Tensor) -> None:
            parameter.grad = None

        for parameter in self.trained:
            parameter.register_post_accumulate_grad_hook(drop)

    def run(self, which: Sequence[str]) -> None:
        """Take a step whose first half makes the optimizer's state; then record one of these micro-batches."""
        self._update_once()
        passes = [(kind, micro_batch) for kind in (FORWARD, BACKWARD) for micro_batch in which]
        alternate = self.layout.pipeline == 1 or (self.kind.last and self.layout.schedule != "gpipe")
        if alternate:  # a backward pass after each forward pass: the order decides what is still gathered
            passes = [(kind, micro_batch) for micro_batch in which for kind in (FORWARD, BACKWARD)]
        for kind, micro_batch in passes:
            self.trace.begin((kind, micro_batch))
            if kind == FORWARD:
                self._forward()
            else:
                self._backward(micro_batch == LAST)
            label_gathered(self.stage, self.trace)
        self.trace.begin((UPDATE, ""))
        self._update()

    def _forward(self) -> None:
        layout, size = self.layout, self.layout.micro_batch_size
        labels = torch.zeros(size, layout.target_seq or layout.local_seq, dtype=torch.long) if self.kind.last else None
        if self.kind.first:
            x = torch.zeros(size, layout.local_seq, dtype=torch.long)
        else:
            tokens = layout.local_seq // (layout.tensor if layout.splits_tokens else 1)
            x = torch.empty(size, tokens, layout.arch.hidden, dtype=self.low, requires_grad=True)
            self.trace.made(x)
        masked = layout.attention_mask and (self.kind.first or self.kind.last)
        mask = torch.zeros(size, 1, layout.seq, layout.local_seq if masked else 0, dtype=torch.bool)
        autocast = layout.precision.endswith("-amp") and layout.zero != "zero3" and layout.engine != "megatron"
        with torch.autocast("cpu", self.low, enabled=autocast):
            out = self.stage(x, labels)
        del mask  # which no fused kernel reads
        if layout.uses_transformer_engine and not self.kind.last:
            out.untyped_storage().resize_(0)  # it has been sent; Megatron keeps its graph alone
        self.kept.append(out)
        torch.clear_autocast_cache()

    def _backward(self, last: bool) -> None:
        if self.layout.pipeline > 1 and self.layout.zero == "zero3":  # as the pipeline schedules of PyTorch do
            ends = last and not self.layout.splits_backward  # a split pass reduces and frees after its second half
            self.stage.set_is_last_backward(ends)
            self.stage.set_reshard_after_backward(ends)
        if self.layout.zero == "zero3" and (self.layout.pipeline > 1 or self.layout.accumulate_whole):
            self.stage.set_requires_gradient_sync(last)
        out = self.kept.pop(0)
        if self.kind.last:
            (out / self.layout.micro_batches).backward()
        else:
            gradient = torch.empty_like(out)
            self.trace.made(gradient)
            out.backward(gradient)
            del gradient
        if last and self.layout.splits_backward and self.layout.zero == "zero3":
            for module in self.stage.modules():
                if hasattr(module, "reshard"):  # sharded by `fully_shard`
                    module.reshard()

    def _update_once(self) -> None:
        """Let the optimizer make its state, which it does in its first step."""
        self.trace.begin((BEFORE, ""))
        for tensor in self.own:
            tensor.grad = torch.empty_like(tensor)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _update(self) -> None:
        if self.layout.zero == "zero3":
            give_gradients(self.own, self.trained)
        elif self.own is not self.trained:
            self.own[0].grad = self._own_gradients()
        torch.nn.utils.clip_grad_norm_(self.own, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        for parameter in self.trained:
            parameter.grad = None

    def _own_gradients(self) -> Tensor:
        """Return this rank's part of the summed gradients: of Megatron's buffer a view, else a flat FP32 copy."""
        count = self.own[0].numel()
        if self.layout.engine == "megatron":
            return self.buffer[:count].float()  # the buffer itself, where it is wide
        return torch.empty(count)
