"""What a block must at least do, and keep: counted from its sizes, without running it.

Every product and every message that stops the computation is here, at the same rates as in the simulation; of the
operations that only pass over memory, those which no fusing spares. So the seconds are less than those of a run, by a
few per cent, and the bytes likewise; `tests/planner/search` holds both against runs.
"""

import math
from dataclasses import dataclass

from ..layout.arch import Arch
from ..layout.chip import Chip
from ..layout.layout import Layout
from ..layout.links import Links

Shapes = list[tuple[int, int, int]]  # (tokens, numbers out, numbers in), or with the experts before
_BACKWARD = 2.5  # attention's, as a multiple of its forward pass
# Bytes that the loss at least reads and writes, forward and backward, for each logit in 16 bits. Words of several ranks
# are passed over once more after each message.
_LOSS_FUSED, _LOSS_WHOLE, _LOSS_SPLIT = (2, 4), (18, 6), (30, 6)


@dataclass(frozen=True)
class BlockCost:
    """The least that one micro-batch costs in one block, or in an end of the model.

    Attributes:
        forward, backward: seconds.
        weights: of the backward pass, in the products that make gradients of weights.
        kept: bytes from forward to backward pass.
        dense, experts: parameters on this rank before sharding.
        less: bytes by which the last block of a stage may keep less than the others.
        working: bytes that its backward pass takes beyond what is kept.
        waiting: bytes of gradients that wait where the weights' half of the backward pass is put off.
    """

    forward: float = 0.0
    backward: float = 0.0
    weights: float = 0.0
    kept: float = 0.0
    dense: int = 0
    experts: int = 0
    less: float = 0.0
    working: float = 0.0
    waiting: float = 0.0


class BlockCosts:
    """Counts blocks of a layout.

    Args:
        layout: of which.
        chip: which computes.
        links: of the layout's wires.
    """

    def __init__(self, layout: Layout, chip: Chip, links: Links) -> None:
        self.layout, self.arch, self._chip, self._links = layout, layout.arch, chip, links
        self._wide = 4 if layout.precision == "fp32" else 2
        low = {"fp32": "float32", "fp16-amp": "float16", "fp8": "float8_e4m3fn"}
        self._dtype = low.get(layout.precision, "bfloat16")
        self.tokens = layout.micro_batch_size * layout.local_seq
        self._stream = self.tokens * self.arch.hidden * self._wide  # bytes of the stream, all its tokens
        self.own_bytes = self._stream // (layout.tensor if layout.splits_tokens else 1)

    def block(self, mixed: bool) -> BlockCost:
        """Return the cost of a block, with experts or without."""
        layout = self.layout
        attention = _attention_shapes(self.arch, self.tokens, layout.tensor)
        mlp, experts = self._mlp(mixed)
        shapes = attention + mlp + experts
        products = [self._product(shape) for shape in shapes]
        of_inputs, of_weights = self._gradients(shapes)
        heads, inner = self._heads(), self._inner(mixed)
        scores = self._scores()
        rings = self._rings()
        sent = self._exchanged(mixed)
        passes = self._passing(3 * inner + 2 * heads)
        # Experts get the tokens that a rank has; what is split by columns begins with all of them.
        split = 1 if mixed and not self.arch.shared_experts else 2
        forward = sum(products) + scores + passes + self._passing(6 * self.own_bytes)
        forward += split * (self._gather() + self._scatter()) + rings + sent
        backward = of_inputs + of_weights + _BACKWARD * scores + self._passing(4 * inner + 6 * self.own_bytes)
        backward += split * (self._gather() + self._scatter()) + rings + sent
        if layout.engine == "megatron" and layout.splits_tokens:
            backward += (split - bool(self.arch.kv_lora)) * self._gather()  # it did not keep what it had gathered
        again = split * self._gather() + self._scatter() + rings + passes + sent
        if layout.recompute == "full":
            backward += sum(products) - products[-1] + scores + again
        elif layout.recompute == "selective" and layout.engine != "megatron":
            backward += again + sum(self._product(shape) for shape in self._every_second(mixed))
        dense = self._count(attention) + (self._count(mlp) if not mixed else self._mixture_parameters())
        kept = self._kept(heads, inner, mixed)
        # While a block is recomputed, all is there that would have been kept.
        working = self._all(heads, inner) - kept if layout.recompute == "full" else 0.0
        return BlockCost(forward, backward, of_weights, kept, dense, self._count(experts), working=max(0.0, working))

    def embedding(self) -> BlockCost:
        """Return the cost of the embedding: its parameters."""
        rows = -(-self.arch.vocab // self.layout.tensor)
        sends = self._scatter()
        return BlockCost(forward=sends, backward=self._gather() if sends else 0.0, dense=rows * self.arch.hidden)

    def head(self) -> BlockCost:
        """Return the cost of the last norm, the logits and the loss."""
        words = -(-self.arch.vocab // self.layout.tensor)
        shape = (self.tokens, words, self.arch.hidden)
        of_inputs, of_weights = self._gradients([shape])
        whole = self.layout.tensor > 1 or self.layout.engine == "megatron"
        logits = self.tokens * words * (4 if whole else self._wide)
        forward, backward = self._product(shape) + self._gather(), of_inputs + of_weights + self._scatter()
        read, written = _LOSS_FUSED
        if whole:
            read, written = _LOSS_SPLIT if self.layout.tensor > 1 else _LOSS_WHOLE
        forward += self._passing(read * self.tokens * words)
        backward += self._passing(written * self.tokens * words)
        size = 0 if self.arch.tied and self.layout.pipeline == 1 else words * self.arch.hidden
        waiting = self.tokens * words * (1 if self._dtype == "float8_e4m3fn" else self._wide)
        return BlockCost(forward, backward, of_weights, logits, size, waiting=waiting)

    def _product(self, shape: tuple[int, ...]) -> float:
        dtype = self._dtype if len(shape) == 3 or self._dtype != "float8_e4m3fn" else "bfloat16"
        return self._chip.product_seconds(shape, dtype)

    def _gradients(self, shapes: Shapes) -> tuple[float, float]:
        """Return the seconds of the products that make gradients of inputs, and of those that make weights'."""
        of_inputs = sum(self._product((*batch, m, k, n)) for *batch, m, n, k in shapes)
        return of_inputs, sum(self._product((*batch, n, k, m)) for *batch, m, n, k in shapes)

    def _count(self, shapes: Shapes) -> int:
        return sum(math.prod(shape[:-3]) * shape[-2] * shape[-1] for shape in shapes)

    def _mixture_parameters(self) -> int:
        inner = self.arch.shared_ffn // self.layout.tensor
        return self.arch.hidden * (self.arch.experts + inner * (3 if self.arch.gated else 2))

    def _mlp(self, mixed: bool) -> tuple[Shapes, Shapes]:
        """Return the products of a perceptron, and of experts."""
        arch, layout = self.arch, self.layout
        if not mixed:
            return _perceptron((self.tokens,), arch, -(-arch.ffn // layout.tensor)), []
        local = arch.experts // layout.expert
        rows = -(-self._routed() // local)
        shared = -(-arch.shared_ffn // layout.tensor)
        return _perceptron((self.tokens,), arch, shared) if shared else [], _perceptron(
            (local, rows), arch, arch.moe_ffn
        )

    def _routed(self) -> int:
        """Return the tokens that this rank sends to experts, each as often as it has experts."""
        own = self.tokens // (self.layout.tensor if self.layout.splits_tokens else 1)
        return own * self.arch.experts_per_token

    def _heads(self) -> int:
        """Return the bytes of queries and keys, and as many of results and values."""
        arch, tensor = self.arch, self.layout.tensor
        if arch.kv_lora:
            return self.tokens * arch.heads // tensor * arch.value_dim * self._wide
        return self.tokens * (arch.heads // tensor + max(1, arch.kv_heads // tensor)) * arch.head_dim * self._wide

    def _inner(self, mixed: bool) -> int:
        """Return the bytes of what is inside the perceptron."""
        gated = 1.0 if self.arch.gated else 2 / 3  # GELU reads and writes once
        numbers = self._routed() * self.arch.moe_ffn if mixed else self.tokens * self.arch.ffn // self.layout.tensor
        return int(numbers * self._wide * gated)

    def _scores(self) -> float:
        """Return the seconds of causal attention's forward pass."""
        layout, arch = self.layout, self.arch
        heads = layout.micro_batch_size * arch.heads // layout.tensor
        flops = heads * layout.seq * layout.seq * (arch.head_dim + arch.values) / layout.context
        dtype = self._dtype if self._dtype in ("float16", "float32") else "bfloat16"
        return 0.0 if dtype == "float32" else self._chip.attention_seconds(flops, dtype)

    def _passing(self, nbytes: float) -> float:
        return self._chip.passing_seconds(nbytes)

    def _gather(self) -> float:
        """Return the seconds of all-gathering the stream over the tensor ranks; without, of half an all-reduce.

        In chunks, as many as there are ranks, all but one may be hidden.
        """
        tensor = self._links["tensor"]
        if self.layout.tensor == 1:
            return 0.0
        if self.layout.splits_tokens:
            seconds = tensor.seconds("all-gather", self._stream)
            return seconds / self.layout.tensor if self.layout.tensor_overlap else seconds
        return tensor.seconds("all-reduce", self._stream) / 2

    def _scatter(self) -> float:
        return self._gather()

    def _rings(self) -> float:
        """Return the seconds in which heads are exchanged for tokens; a ring goes round beside the work."""
        layout, wire = self.layout, self._links["context"]
        if layout.context == 1 or layout.context_method == "ring":
            return 0.0
        keys = self._keys()
        queries = self.tokens * self.arch.heads // layout.tensor * self.arch.head_dim * self._wide
        return 2 * wire.seconds("all-to-all", queries) + 2 * wire.seconds("all-to-all", keys)

    def _exchanged(self, mixed: bool) -> float:
        nbytes = self._routed() * self.arch.hidden * self._wide if mixed else 0
        return 2 * self._links["expert"].seconds("all-to-all", nbytes) if nbytes else 0.0

    def _every_second(self, mixed: bool) -> Shapes:
        """Return the products that selective recomputation does again; for latent attention and experts, some."""
        if self.arch.kv_lora:
            return []
        shapes = _attention_shapes(self.arch, self.tokens, self.layout.tensor) + ([] if mixed else self._mlp(False)[0])
        return shapes[1:-1:2]

    def _kept(self, heads: int, inner: int, mixed: bool) -> float:
        if self.layout.recompute == "full":
            return self.own_bytes
        if self.layout.recompute == "selective" and self.layout.engine != "megatron":
            results = (2 * heads - self._keys()) if not self.arch.kv_lora else heads
            rest = 0 if mixed else self._stream + inner if self.arch.gated else inner
            return self.own_bytes + results + rest
        return self._all(heads, inner)

    def _all(self, heads: int, inner: int) -> float:
        """Return the bytes that a block keeps of which nothing is recomputed."""
        return 2 * self.own_bytes + 2 * heads + (3 if self.arch.gated else 2) * inner

    def _keys(self) -> int:
        return self.tokens * max(1, self.arch.kv_heads // self.layout.tensor) * self.arch.head_dim * self._wide


def _attention_shapes(arch: Arch, tokens: int, tensor: int) -> Shapes:
    heads, hidden = arch.heads // tensor, arch.hidden
    if not arch.kv_lora:
        q, kv = heads * arch.head_dim, max(1, arch.kv_heads // tensor) * arch.head_dim
        return [(tokens, q, hidden), (tokens, kv, hidden), (tokens, kv, hidden), (tokens, hidden, q)]
    queries = [(tokens, arch.q_lora, hidden)] if arch.q_lora else []
    return [
        *queries,
        (tokens, heads * arch.head_dim, arch.q_lora or hidden),
        (tokens, arch.kv_lora + arch.rope_dim, hidden),
        (tokens, heads * (arch.head_dim - arch.rope_dim + arch.value_dim), arch.kv_lora),
        (tokens, hidden, heads * arch.value_dim),
    ]


def _perceptron(rows: tuple[int, ...], arch: Arch, inner: int) -> Shapes:
    firsts = [(*rows, inner, arch.hidden)] * (2 if arch.gated else 1)
    return [*firsts, (*rows, arch.hidden, inner)]
