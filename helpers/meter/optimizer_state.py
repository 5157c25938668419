"""What an optimizer keeps between two steps, whatever kind of tensor it keeps it in."""

from collections.abc import Iterator

import torch
from torch import Tensor

from .tensor_parts import flat_tensors, inner_tensors


def state_tensors(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """Yield the tensors with memory of their own in the state of `optimizer`."""
    for state in optimizer.state.values():
        for value in state.values():
            for tensor in flat_tensors(value.values() if isinstance(value, dict) else (value,)):
                yield from inner_tensors(tensor)


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of all state of `optimizer`, on any device.

    Memory that several parameters share (the code books of an 8-bit optimizer) counts once. State is made in the first
    step: before it, the answer is 0.
    """
    storages = {}
    for tensor in state_tensors(optimizer):
        storage = tensor.untyped_storage()
        storages[tensor.device, storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())
