"""How many bytes the operations of a piece of code read and write.

In eager mode each operation reads its inputs from memory and writes its result there. Both are counted from the sizes
of its tensors, whatever a cache may hold; views, which move nothing, are left out.
"""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .kinds import kind_of
from .operations_seen import each_operation
from .tensor_parts import flat_tensors, sparse_parts

# Operations that do not read their first tensor, and those that read of a table as much as they return.
_WRITES_ONLY = ("copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "random_", "exponential_")
_LIKE = ("_like", "new_zeros", "new_ones", "new_full")  # take a tensor for its shape
_LOOKS_UP = ("embedding", "index", "index_select", "gather")


@dataclass
class Traffic:
    """Operations in order: (name, bytes read, bytes written)."""

    rows: list[tuple[str, int, int]] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Bytes read and written by all operations."""
        return sum(read + written for _, read, written in self.rows)

    def table(self, unit: int) -> str:
        """Return a line for each operation, in multiples of `unit` bytes."""
        lines = [f"{'operation':26}{'reads':>7}{'writes':>8}"]
        lines += [f"{name:26}{read / unit:>7.2g}{written / unit:>8.2g}" for name, read, written in self.rows]
        return "\n".join([*lines, f"{len(self.rows)} operations move {self.nbytes / unit:.3g}"])


def traffic(fn: Callable[..., object], *args: object) -> Traffic:
    """Run `fn(*args)` and count what its operations read and write, in bytes. A backward pass inside is counted, too.

    It sees what the dispatcher sees, which does not include kernels made by `torch.compile`.
    """
    moved = Traffic()

    def see(func: Any, args: Any, kwargs: Any, result: Any) -> None:
        name = func._schema.name
        if kind_of(name) is not None:
            moved.rows.append((name.removeprefix("aten::"), *bytes_moved(func, args, kwargs, result)))

    each_operation(lambda: fn(*args), see)
    return moved


def bytes_moved(func: Any, args: Any, kwargs: Any, result: Any) -> tuple[int, int]:
    """Return the bytes that one operation reads and writes, each tensor once: x * x reads x once.

    A look-up (`embedding`, `index`) reads as much of its table as it returns. What it works on in place, it writes.
    """
    name, written_positions = _name_and_written(func)
    inputs = list(flat_tensors(args)) + list(flat_tensors(kwargs.values()))
    changed = [args[i] for i in written_positions if i < len(args)]
    changed += [kwargs["out"]] if "out" in kwargs else []
    results = list(flat_tensors((result,)))
    written = _nbytes(flat_tensors((*changed, *results)))
    if name in _LOOKS_UP:
        return _nbytes(results) + _nbytes(inputs[1:]), written
    unread = {id(kwargs.get("out"))} | ({id(args[0])} if name in _WRITES_ONLY or name.endswith(_LIKE) else set())
    return _nbytes(tensor for tensor in inputs if id(tensor) not in unread), written


@functools.cache
def _name_and_written(func: Any) -> tuple[str, tuple[int, ...]]:
    """Return the plain name of `func`, and which of its positional arguments it changes."""
    arguments = [a.name if a.alias_info is not None and a.alias_info.is_write else "" for a in func._schema.arguments]
    # A fused optimizer may scale the gradients, but does so only for a gradient scaler.
    changed = [i for i, name in enumerate(arguments) if name not in ("", "grads")]
    return func._schema.name.partition("::")[2], tuple(changed)


def _nbytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes in memory of distinct tensors: a dimension that `expand` made (stride 0) is there once."""
    total = 0
    for tensor in {id(tensor): tensor for tensor in tensors}.values():
        if tensor.layout is not torch.strided:
            total += _nbytes(sparse_parts(tensor))
            continue
        numel = 1
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
            numel *= size if stride else min(size, 1)
        total += numel * tensor.element_size()
    return total
