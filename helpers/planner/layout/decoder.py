"""A stage of a decoder as one rank holds it: its slice of some blocks, of the embedding and of the head."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .adapters import Adapter, linear
from .attention import Wires, attention_of, column, columns_of, parts
from .cross_attention import CrossAttention
from .gathered_experts import GatheredExperts
from .head import Head
from .kernels import Norm, activate, drop
from .layout import Layout
from .next_tokens import NextTokens
from .wire import Wire, exchange, leave

Marker = Callable[[str], None]
"""Hears where in the stage the program is: "layer 3 forward", and the like."""


class Mlp(nn.Module):
    """A perceptron with one hidden layer of `inner` / tensor units on each tensor rank."""

    def __init__(self, layout: Layout, wire: Wire, inner: int) -> None:
        super().__init__()
        arch = layout.arch
        self.wire, self.layout = wire, layout
        local = -(-inner // wire.size)
        self.widths = [local, local] if arch.gated else [local]
        self.inner = columns_of(layout, self.widths, arch.bias)
        self.down = linear(layout, local, arch.hidden, arch.bias)
        self.adapters = None
        if layout.lora_rank and layout.lora_targets == "all":
            before = Adapter(layout, (arch.hidden, local * (2 if arch.gated else 1)), wire)
            self.adapters = nn.ModuleList((before, Adapter(layout, (local, arch.hidden), wire, by_rows=True)))

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, S, D), or (B, S / tensor, D) where tokens are split; likewise the result."""
        outs = parts(column(x, list(self.inner), self.wire, self.layout), self.widths)
        if self.adapters is not None:
            more = self.adapters[0](x).chunk(len(outs), -1)
            outs = [out + extra for out, extra in zip(outs, more, strict=True)]
        inner = activate(*outs)
        result = leave(self.down(inner), self.wire, self.layout.splits_tokens)
        return result if self.adapters is None else result + self.adapters[1](inner)


class Experts(nn.Module):
    """A mixture of experts, each whole on one expert rank; all get equally many tokens, as published runs force it.

    Every rank sends each of its tokens to the ranks of `experts_per_token` experts, and gets the results back.
    """

    def __init__(self, layout: Layout, wires: Wires) -> None:
        super().__init__()
        arch = layout.arch
        self.wire, self.chosen, self.local = wires.expert, arch.experts_per_token, arch.experts // layout.expert
        self.router = nn.Linear(arch.hidden, arch.experts, bias=False)
        shape = (self.local, arch.hidden, arch.moe_ffn)
        self.gate = nn.Parameter(torch.empty(shape))
        self.up = nn.Parameter(torch.empty(shape)) if arch.gated else None
        self.down = nn.Parameter(torch.empty(self.local, arch.moe_ffn, arch.hidden))
        self.shared = Mlp(layout, wires.tensor, arch.shared_ffn) if arch.shared_ffn else None

    def weights(self) -> list[nn.Parameter]:
        """Return the experts' parameters."""
        return [weight for weight in (self.gate, self.up, self.down) if weight is not None]

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, S, D), this rank's tokens; likewise the result."""
        tokens = x.flatten(0, 1)  # (T, D)
        weights, chosen = F.softmax(self.router(tokens).float(), -1).topk(self.chosen)  # (T, chosen)
        order = chosen.flatten().argsort()
        sent = exchange(tokens.index_select(0, order // self.chosen), self.wire, 0, 0)  # (T x chosen, D)
        rows = -(-len(sent) // self.local)
        by_expert = F.pad(sent, (0, 0, 0, rows * self.local - len(sent))).unflatten(0, (self.local, rows))
        firsts = [self.gate] if self.up is None else [self.gate, self.up]
        inner = activate(*(torch.bmm(by_expert, first.to(x.dtype)) for first in firsts))
        done = torch.bmm(inner, self.down.to(x.dtype)).flatten(0, 1)[: len(sent)]
        back = exchange(done, self.wire, 0, 0).index_select(0, order.argsort()).unflatten(0, (-1, self.chosen))
        out = (back * weights.to(x.dtype).unsqueeze(-1)).sum(1).view_as(x)
        return out if self.shared is None else out + self.shared(x)


class Block(nn.Module):
    """One block: attention, then a perceptron or experts, each on the normed stream and added to it."""

    def __init__(self, layout: Layout, wires: Wires, layer: int) -> None:
        super().__init__()
        arch, self.dropout = layout.arch, layout.dropout
        self.attention_norm = Norm(arch.hidden, arch.layer_norm)
        self.attention = attention_of(layout, wires, arch.is_causal(layer))
        self.mlp_norm = Norm(arch.hidden, arch.layer_norm)
        experts = GatheredExperts if layout.dispatcher == "all-gather" else Experts
        self.mlp = experts(layout, wires) if arch.is_moe(layer) else Mlp(layout, wires.tensor, arch.ffn)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, S, D), or (B, S / tensor, D) where tokens are split; likewise the result."""
        x = x + drop(self.attention(self.attention_norm(x)), self.dropout)
        return x + drop(self.mlp(self.mlp_norm(x)), self.dropout)


class CrossBlock(Block):
    """A block whose tokens, between attention and perceptron, also attend to those that an encoder has read."""

    def __init__(self, layout: Layout, wires: Wires, layer: int) -> None:
        super().__init__(layout, wires, layer)
        self.cross_norm = Norm(layout.arch.hidden, layout.arch.layer_norm)
        self.cross = CrossAttention(layout, wires)

    def forward(self, x: Tensor, read: Tensor) -> Tensor:
        """x, read: (B, S, D) with an S of their own, or its part of a tensor rank; the result is like x."""
        x = x + drop(self.attention(self.attention_norm(x)), self.dropout)
        x = x + drop(self.cross(self.cross_norm(x), read), self.dropout)
        return x + drop(self.mlp(self.mlp_norm(x)), self.dropout)


class Embedding(nn.Module):
    """This tensor rank's rows of the embedding; each rank looks up what it has, and the results are added.

    That words of other ranks must be masked is left out: it costs nothing beside the rest, and a plan has no words.
    """

    def __init__(self, layout: Layout, wire: Wire) -> None:
        super().__init__()
        arch = layout.arch
        self.wire, self.by_tokens, self.whole = wire, layout.splits_tokens, layout.plain_ends
        self.dropout = layout.dropout
        self.table = nn.Embedding(arch.vocab if self.whole else -(-arch.vocab // wire.size), arch.hidden)
        self.positions = nn.Embedding(max(arch.positions, layout.seq), arch.hidden) if arch.positions else None
        self.types = nn.Embedding(2, arch.hidden) if arch.pairs else None

    def forward(self, ids: Tensor) -> Tensor:
        """ids: (B, S). Returns (B, S, D), or (B, S / tensor, D) where tokens are split."""
        x = self.table(ids)
        if not self.whole:
            x = leave(x, self.wire, self.by_tokens)
        elif self.by_tokens:
            x = x[:, : x.shape[1] // self.wire.size]
        for table in (self.positions, self.types):
            x = x if table is None else x + table(ids[:, : x.shape[1]])
        return drop(x, self.dropout)


class _Place(torch.autograd.Function):
    """Tells a marker that the forward or the backward pass comes by."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mark: Marker, forward: str, backward: str) -> Tensor:
        ctx.mark, ctx.backward = mark, backward
        mark(forward)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        ctx.mark(ctx.backward)
        return gradient, None, None, None


class Stage(nn.Module):
    """Consecutive blocks of a decoder, with the embedding before the first and the head after the last.

    Args:
        layout: which slice of everything a rank holds.
        wires: of the rank.
        layers: numbers of the blocks.
        ends: whether the stage has the embedding, and the head.
    """

    def __init__(self, layout: Layout, wires: Wires, layers: list[int], ends: tuple[bool, bool]) -> None:
        super().__init__()
        self.layout, self.mark = layout, lambda place: None
        first, last = ends
        arch = layout.arch
        self.embedding = Embedding(layout, wires.tensor) if first else None
        crosses = [0 < arch.encoder_layers <= layer for layer in layers]
        self.blocks = nn.ModuleList(
            (CrossBlock if cross else Block)(layout, wires, layer) for cross, layer in zip(crosses, layers, strict=True)
        )
        self.encoder_norm = Norm(arch.hidden, arch.layer_norm) if arch.encoder_layers else None
        tied = self.embedding.table.weight if arch.tied and self.embedding is not None else None
        self.head = Head(layout, wires.tensor, tied) if last else None
        further = arch.further if last else 0
        self.further = nn.ModuleList(
            NextTokens(layout, wires, Block(layout, wires, arch.layers - 1)) for _ in range(further)
        )
        self.again = self.embedding or Embedding(layout, wires.tensor) if further else None
        if further and arch.tied:
            self.again.table.weight = self.head.logits.weight

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
        """x: token ids (B, S) for the first stage, else the stream; returns the stream, or the loss in the last.

        The decoder of an encoder-decoder reads as many tokens as there are labels, which are by one token ahead.
        """
        x = x if self.embedding is None else self.embedding(x)
        if self.layout.lora_rank and self.embedding is not None:
            x.requires_grad_()  # the table is not trained; PEFT's `enable_input_require_grads` does the same
        read: tuple[Tensor, ...] = ()  # by an encoder
        for at, block in enumerate(self.blocks):
            if isinstance(block, CrossBlock) and not read:
                read, x = (self.encoder_norm(x),), self.embedding(labels)
            x = _Place.apply(x, self.mark, f"layer {at}", "post" if at == 0 else f"layer {at - 1}")
            x = block(x, *read)
        last = len(self.blocks) - 1
        x = _Place.apply(x, self.mark, "post", f"layer {last}")
        if self.head is None:
            return x
        return self.head(x, labels) if self.again is None else self._further(self.head.norm(x), labels)

    def _further(self, x: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of several tokens; x: (B, S, D), normed, or (B, S / tensor, D) where tokens are split.

        The streams of all are joined before the first logits (`MultiTokenPredictionBlock.forward` in Megatron).
        """
        streams = [x]
        for block in self.further:
            streams.append(block(streams[-1], self.again(labels)))
        first, *others = torch.cat(streams).chunk(len(streams))
        loss = sum(self.head.loss(each, labels) for each in others)
        return loss + self.head.loss(first, labels)
