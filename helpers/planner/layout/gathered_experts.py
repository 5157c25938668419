"""Experts of Megatron whose ranks gather the tokens of all of them, by what each step keeps and takes.

This is its `allgather` dispatcher. The `expert` x `expert_tensor` ranks that share a set of experts gather each other's
tokens, and each rank picks those of its own experts; results go back as a sum that is scattered. Shapes, tensors kept
and messages are those of Megatron (core/transformer/moe); values are not.
"""

from typing import Any

import torch
from torch import Tensor, nn

from .attention import Wires
from .kernels import activate
from .layout import Layout
from .wire import Wire, leave, products


class GatheredExperts(nn.Module):
    """A rank's experts, or its slices of them; all experts get equally many tokens, as Sinkhorn's routing sees to.

    What a block keeps for the backward pass:

    - the normed tokens, for the router's matmul, and the router's probabilities, masked (router.py);
    - the map of who chose the rank's experts, a byte per token and expert, and the picked tokens' places, 8 bytes each
      (token_dispatcher.py). The gathered tokens themselves lie in one buffer for all blocks (`add_standing`);
    - the picked tokens, the input and the result of the activation, and that result times the router's probability,
      which the second matmul reads (experts.py);
    - with reproducible algorithms the experts' results: `index_add_` keeps what it adds, and `scatter_add_` does not
      (`unpermute` of moe_utils.py).
    """

    def __init__(self, layout: Layout, wires: Wires) -> None:
        super().__init__()
        arch = layout.arch
        self.layout, self.alone = layout, Wire("expert", 1, wires.expert.listener)
        self.wire = Wire("expert", layout.expert * layout.expert_tensor, wires.expert.listener)
        self.local, inner = arch.experts // layout.expert, arch.moe_ffn // layout.expert_tensor
        self.router = nn.Linear(arch.hidden, arch.experts, bias=False)
        wide = inner * (2 if arch.gated else 1)
        if layout.grouped_experts:  # one matmul for all of them
            self.up = nn.Parameter(torch.empty(self.local, wide, arch.hidden))
            self.down = nn.Parameter(torch.empty(self.local, arch.hidden, inner))
        else:
            self.up = nn.ParameterList(torch.empty(wide, arch.hidden) for _ in range(self.local))
            self.down = nn.ParameterList(torch.empty(arch.hidden, inner) for _ in range(self.local))

    def weights(self) -> list[nn.Parameter]:
        """Return the experts' parameters."""
        return [self.up, self.down] if self.layout.grouped_experts else [*self.up, *self.down]

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, S, D), this rank's tokens; likewise the result."""
        tokens = x.flatten(0, 1)  # (T, D)
        shares, chosen = self._route(tokens)  # (T, E) each
        if self.wire.size > 1:
            chosen = self.wire.all_gather(chosen, 0)
            shares = _Gathered.apply(shares, self.wire)
            tokens = _IntoBuffer.apply(tokens, self.wire)  # (G, D)
        mine = chosen[:, : self.local].contiguous()  # (G, E / expert)
        count = len(tokens) * self.layout.arch.experts_per_token // self.layout.expert
        places = mine.t().contiguous().flatten().argsort(descending=True, stable=True)[:count] % len(tokens)
        picked = tokens.index_select(0, places)  # (N, D)
        share = _Selected.apply(shares[:, : self.local].contiguous(), mine.t().contiguous(), count)
        done = self._grouped(picked, share) if self.layout.grouped_experts else self._one_by_one(picked, share)
        out = torch.zeros_like(tokens, memory_format=torch.contiguous_format)
        if self.layout.deterministic:
            out.index_add_(0, places, done)
        else:
            out.scatter_add_(0, places.unsqueeze(1).expand_as(done), done)
        return leave(out.unsqueeze(0), self.wire, True).view_as(x)

    def _route(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the probabilities of the chosen experts, 0 elsewhere, and which were chosen."""
        logits = self.router(tokens)  # (T, E)
        most = self.layout.arch.experts_per_token
        with torch.no_grad():  # Sinkhorn's balancing, in 32 bits
            indices = logits.float().exp().topk(most, 1).indices
            chosen = torch.zeros_like(logits, dtype=torch.int32).scatter(1, indices, 1).bool()
        shares = logits.sigmoid() if most == 1 else logits.float().softmax(-1).to(logits.dtype)
        return shares * chosen, chosen

    def _grouped(self, picked: Tensor, share: Tensor) -> Tensor:
        by_expert = picked.view(self.local, -1, picked.shape[-1])  # (experts, N / experts, D)
        inner = self._activated(torch.bmm(by_expert, self.up.transpose(1, 2)))
        return torch.bmm(inner * share.view(self.local, -1, 1), self.down.transpose(1, 2)).flatten(0, 1)

    def _one_by_one(self, picked: Tensor, share: Tensor) -> Tensor:
        rows = -(-len(picked) // self.local)
        keeps, done = self.layout.uses_transformer_engine, []
        each = zip(picked.split(rows), share.split(rows), self.up, self.down, strict=True)
        for tokens, own, up, down in each:
            (wide,) = products(tokens.unsqueeze(0), [up], self.alone, keeps)
            inner = self._activated(wide) * own.unsqueeze(-1)
            done += products(inner, [down], self.alone, keeps)
        return done[0].squeeze(0) if len(done) == 1 else torch.cat(done, 1).squeeze(0)

    def _activated(self, wide: Tensor) -> Tensor:
        return activate(*(wide.chunk(2, -1) if self.layout.arch.gated else (wide,)))


class _Gathered(torch.autograd.Function):
    """Gathers what the ranks of an expert group have for their tokens; backward, adds up and keeps its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, wire: Wire) -> Tensor:
        ctx.wire = wire
        return wire.all_gather(x, 0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.wire.reduce_scatter(gradient, 0), None


class _IntoBuffer(torch.autograd.Function):
    """The same into the buffer that is there anyway, forward and backward: no memory of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, wire: Wire) -> Tensor:
        ctx.wire, ctx.rows = wire, len(x)
        wire.tell("all-gather", x.numel() * wire.size * x.element_size())
        return x.new_empty(1).expand(len(x) * wire.size, x.shape[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.wire.tell("reduce-scatter", gradient.numel() * gradient.element_size())
        return gradient.new_empty(1).expand(ctx.rows, gradient.shape[1]), None


class _Selected(torch.autograd.Function):
    """Picks `count` elements by a map, which it keeps."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, chosen: Tensor, count: int) -> Tensor:
        ctx.save_for_backward(chosen)
        ctx.shape = x.shape
        return x.new_empty(count)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient.new_zeros(ctx.shape), None, None
