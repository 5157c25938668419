"""Tell the tensors of a data set from those of the model, on a CPU that holds both.

Where ranks have GPUs, a batch that has not been moved there makes PyTorch raise. The probes run on the CPU, where
nothing raises: so what a loader yields is marked, what a model returns is marked as well, and a call that gets one of
each is noted. `Tensor.to` with a device takes the mark away; tensors without a mark meet both.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from .on_forward import on_forward


class _Marked(Tensor):
    """A tensor that knows where it would be on a machine with GPUs."""

    met: ClassVar[list[str]] = []  # the calls in which both kinds met

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the call; note it if both kinds meet in it, and mark what comes of it."""
        kwargs = kwargs or {}
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs)
            if _moves(func, args, kwargs):
                return result.as_subclass(Tensor)
            marks = {type(x) for x in given if isinstance(x, _Marked) and x.dim()}  # one number may be anywhere
            if len(marks) == 2 and func is not Tensor.copy_:
                _Marked.met.append(getattr(func, "__name__", str(func)))
            kind = OnRank if any(isinstance(x, OnRank) for x in given) else OnHost
            mine = {id(x) for x in given}
            return tree_map_only(Tensor, lambda x: x if id(x) in mine else x.as_subclass(kind), result)


class OnHost(_Marked):
    """What a data set holds."""


class OnRank(_Marked):
    """What a model returns."""


def _moves(func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether what a call returns is on a device that the call names, whatever it was given."""
    if func in (Tensor.cpu, Tensor.cuda, Tensor.type_as):
        return not (func is Tensor.cpu and isinstance(args[0], OnHost))
    named = (*args[1:], *kwargs.values()) if func is Tensor.to else (kwargs.get("device"),)
    return any(isinstance(x, torch.device | str | int | Tensor) and not isinstance(x, bool) for x in named)


def watch_devices(model: nn.Module) -> list[str]:
    """Mark what `model` returns, and return a list that fills with the calls in which both kinds met."""
    _Marked.met = []

    def comes_in(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if isinstance(args[0], OnHost):
            _Marked.met.append("forward")
        return tuple(plain_again(x) for x in args)

    on_forward(model, comes_in, lambda _, args, output: output.as_subclass(OnRank))
    return _Marked.met


def plain_again(tensor: Tensor) -> Tensor:
    """Return `tensor` without a mark."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(Tensor)
