"""Wires: what the ranks of one dimension send each other, and the functions of autograd that send it.

A `Wire` is a process group as the simulation needs it: it makes tensors of the right shape, and tells who listens which
collective was called with how many bytes. A real one (tests) sends them.
"""

from typing import Any, Protocol

import torch
from torch import Tensor


class Listener(Protocol):
    """Who wants to know what a wire does."""

    def tell(self, collective: str, wire: str, nbytes: int) -> None:
        """Hear that a collective is called on a wire, with the bytes of the whole tensor."""

    def arrived(self, collective: str) -> None:
        """Hear that the program waits for what was sent."""

    def made(self, tensor: Tensor) -> None:
        """Hear that the wire has made a tensor for what arrives."""

    def kept(self, tensor: Tensor) -> None:
        """Hear that a tensor lies in memory until the backward pass, whatever a compiler would compute again."""


class Wire:
    """The ranks of one dimension, as one of them sees it. With one rank nothing is sent.

    Args:
        name: of the dimension: "tensor".
        size: ranks.
        listener: hears of every collective.
        rank: which of them this is.
    """

    def __init__(self, name: str, size: int, listener: Listener, rank: int = 0) -> None:
        self.name, self.size, self.listener, self.rank = name, size, listener, rank

    def all_reduce(self, x: Tensor, largest: bool = False) -> Tensor:
        """Return the sum over the ranks, or their maximum, in a new tensor."""
        self._say("all-reduce", x)
        return self._made(x.new_empty(x.shape))

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        """Return the ranks' parts, one after the other in dimension `dim`."""
        whole = self._made(x.new_empty(_scaled(x, dim, self.size, 1)))
        self._say("all-gather", whole)
        return whole

    def reduce_scatter(self, x: Tensor, dim: int) -> Tensor:
        """Return this rank's part, in dimension `dim`, of the sum over the ranks."""
        self._say("reduce-scatter", x)
        return self._made(x.new_empty(_scaled(x, dim, 1, self.size)))

    def all_to_all(self, x: Tensor, split: int, join: int) -> Tensor:
        """Send each rank its part in dimension `split`, and join what arrives in dimension `join`."""
        self._say("all-to-all", x)
        shape = list(x.shape)
        shape[split] //= self.size
        shape[join] *= self.size
        return self._made(x.new_empty(shape))

    def shift(self, x: Tensor) -> Tensor:
        """Begin to send `x` to the next rank of the ring; what the one before sends is there after `arrived`."""
        self._say("shift", x)
        return self._made(torch.empty_like(x))

    def arrived(self, x: Tensor) -> Tensor:
        """Wait for the first shift that nobody has waited for, and return `x`, into which it brings the tensor."""
        self.listener.arrived("shift")
        return x

    def tell(self, collective: str, nbytes: int) -> None:
        """Say that a collective is called with so many bytes; its tensor lies in memory that is there."""
        self.listener.tell(collective, self.name, nbytes)

    def _say(self, collective: str, x: Tensor) -> None:
        self.tell(collective, x.numel() * x.element_size())

    def _made(self, x: Tensor) -> Tensor:
        self.listener.made(x)
        return x


def _scaled(x: Tensor, dim: int, times: int, parts: int) -> list[int]:
    shape = list(x.shape)
    shape[dim] = shape[dim] * times // parts
    return shape


class _Enter(torch.autograd.Function):
    """Identity forward; backward, each rank has the gradient of its own product only, so they are added."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, wire: Wire) -> Tensor:
        ctx.wire = wire
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.wire.all_reduce(gradient), None


class _Leave(torch.autograd.Function):
    """Adds the ranks' partial results; backward, every rank has the whole gradient already."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, wire: Wire) -> Tensor:
        return wire.all_reduce(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _Gather(torch.autograd.Function):
    """Joins the ranks' parts; backward, adds their gradients and keeps this rank's part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, wire: Wire, dim: int) -> Tensor:
        ctx.wire, ctx.dim = wire, dim
        return wire.all_gather(x, dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.wire.reduce_scatter(gradient, ctx.dim), None, None


class _Scatter(torch.autograd.Function):
    """Adds the ranks' partial results and keeps this rank's part; backward, joins the gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, wire: Wire, dim: int) -> Tensor:
        ctx.wire, ctx.dim = wire, dim
        return wire.reduce_scatter(x, dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.wire.all_gather(gradient, ctx.dim), None, None


class _Exchange(torch.autograd.Function):
    """All-to-all; backward, the other way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, wire: Wire, split: int, join: int) -> Tensor:
        ctx.wire, ctx.split, ctx.join = wire, split, join
        return wire.all_to_all(x, split, join)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.wire.all_to_all(gradient.contiguous(), ctx.join, ctx.split), None, None, None


def enter(x: Tensor, wire: Wire, by_tokens: bool) -> Tensor:
    """Return the input of a product that is split by columns. x: (B, S, D), or (B, S / size, D) if `by_tokens`."""
    if wire.size == 1:
        return x
    return _Gather.apply(x, wire, 1) if by_tokens else _Enter.apply(x, wire)


def leave(x: Tensor, wire: Wire, by_tokens: bool) -> Tensor:
    """Return the result of a product that is split by rows, added up; this rank's tokens of it if `by_tokens`."""
    if wire.size == 1:
        return x
    return _Scatter.apply(x, wire, 1) if by_tokens else _Leave.apply(x, wire)


class _Join(torch.autograd.Function):
    """Joins the ranks' parts in the last dimension; backward, every rank has the whole gradient and keeps its part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, wire: Wire) -> Tensor:
        ctx.wire = wire
        return torch.cat(wire.all_gather(x, 0).chunk(wire.size), -1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.chunk(ctx.wire.size, -1)[ctx.wire.rank].contiguous(), None


def join(x: Tensor, wire: Wire) -> Tensor:
    """Return the parts of the last dimension that the ranks hold, joined; all ranks then do the same with the whole."""
    return x if wire.size == 1 else _Join.apply(x, wire)


def exchange(x: Tensor, wire: Wire, split: int, join: int) -> Tensor:
    """Send each rank its part of dimension `split`, and join what arrives in dimension `join`."""
    return x if wire.size == 1 else _Exchange.apply(x.contiguous(), wire, split, join)


class _Products(torch.autograd.Function):
    """Products of a gathered input with several weights; only this rank's tokens are kept, and gathered again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, wire: Wire, keeps: bool, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.wire = wire
        ctx.save_for_backward(x, *weights)
        if keeps and wire.size > 1:
            wire.listener.kept(x)
        whole = x if wire.size == 1 else wire.all_gather(x, 1)
        return tuple(torch.matmul(whole, weight.t()) for weight in weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        alone = ctx.wire.size == 1
        whole = (x if alone else ctx.wire.all_gather(x, 1)).flatten(0, 1)  # (B x S, D)
        of_input = gradients[0] @ weights[0]
        for gradient, weight in zip(gradients[1:], weights[1:], strict=True):  # one matmul of stacked weights, really
            added = torch.addmm(of_input.flatten(0, 1), gradient.flatten(0, 1), weight)
            of_input = added.view(of_input.shape)
        of_weights = [gradient.flatten(0, 1).t() @ whole for gradient in gradients]
        return of_input if alone else ctx.wire.reduce_scatter(of_input, 1), None, None, *of_weights


def products(x: Tensor, weights: list[Tensor], wire: Wire, keeps: bool) -> tuple[Tensor, ...]:
    """Return x @ w.T for each of `weights`, x gathered by tokens and not kept whole, as Megatron does.

    x: (B, S / size, D), which `keeps` has lie in memory, whatever a compiler would compute again; results: (B, S, n).
    """
    return _Products.apply(x, wire, keeps, *weights)
