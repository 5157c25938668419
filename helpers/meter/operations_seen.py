"""Seeing each operation that a piece of code hands to the dispatcher."""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .kinds import is_taken_apart

See = Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None]


class OperationWatch(TorchDispatchMode):
    """Shows each operation of its `with` block to `see`, after it has run; a backward pass inside is seen, too.

    A subclass defines `see(func, args, kwargs, result)` and keeps what it wants to know. Collectives are operations of
    the namespaces `c10d` and `_c10d_functional`.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # saves a wrapper around every operation; what is compiled does not run in this mode anyway

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Take note of an operation."""
        raise NotImplementedError

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # a DTensor, say, takes itself apart: its parts come through here again
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled() and is_taken_apart(func):  # there composites come whole
            with self:
                return func.decompose(*args, **kwargs)
        result = func(*args, **kwargs)
        self.see(func, args, kwargs, result)
        return result


class _Calling(OperationWatch):
    def __init__(self, see: See) -> None:
        super().__init__()
        self._see = see

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self._see(func, args, kwargs, result)


def each_operation(fn: Callable[[], object], see: See) -> None:
    """Run `fn()` and call `see(func, args, kwargs, result)` after each of its operations.

    Functions that `torch.compile` has made run uncompiled: inside their kernels there are no operations to see.
    """
    if "torch._dynamo" not in sys.modules:  # nothing has been compiled, and importing it takes seconds
        with _Calling(see):
            fn()
        return
    with torch.compiler.set_stance("force_eager"), _Calling(see):
        fn()
