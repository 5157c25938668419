"""How many bytes the operations of a piece of code read and write.

In eager mode each operation reads its inputs from memory and writes its result there. Both are counted from the sizes
of its tensors, whatever a cache may hold; views, which move nothing, are left out.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_ALLOCATES_ONLY = ("aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::detach")


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


class _TrafficMode(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.traffic = Traffic()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name
        if not func.is_view and name not in _ALLOCATES_ONLY:
            read, written = (sum(map(_nbytes, _distinct(tree))) for tree in ((args, kwargs), result))
            self.traffic.rows.append((name.removeprefix("aten::"), read, written))
        return result


def _distinct(tree: Any) -> list[Tensor]:
    """Return the tensors in `tree`, each once: x * x reads x once."""
    return list({id(leaf): leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)}.values())


def _nbytes(tensor: Tensor) -> int:
    """Return the bytes in memory: a dimension that `expand` made (stride 0) is there once."""
    numel = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        numel *= size if stride else min(size, 1)
    return numel * tensor.element_size()


def traffic(fn: Callable[..., object], *args: object) -> Traffic:
    """Run `fn(*args)` and count what its operations read and write, in bytes. A backward pass inside is counted, too.

    It sees what the dispatcher sees, which does not include kernels made by `torch.compile`.
    """
    with _TrafficMode() as mode:
        fn(*args)
    return mode.traffic
