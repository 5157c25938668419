"""The tensors inside other things: lists of arguments, sparse tensors, wrappers around quantized data."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor


def flat_tensors(values: Iterable[object]) -> Iterator[Tensor]:
    """Yield the tensors among the arguments or results of an operation, which nest them in lists at most."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from flat_tensors(value)


def sparse_parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return the dense tensors that a sparse one consists of; none for a layout that is not known."""
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    return ()


def inner_tensors(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the tensors with memory of their own: for a wrapper, such as torchao's 4-bit state, what it wraps."""
    names = tensor.__tensor_flatten__()[0] if hasattr(tensor, "__tensor_flatten__") else ()
    if not names:
        yield tensor
    for name in names:
        yield from inner_tensors(getattr(tensor, name))
