"""How many bytes an optimizer keeps between two steps, whatever kind of tensor it keeps them in."""

import torch

from .count import state_tensors


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of all state of `optimizer`, on any device.

    Memory that several parameters share (the code books of an 8-bit optimizer) counts once. State is born in the first
    step: before it, the answer is 0.
    """
    storages = {}
    for tensor in state_tensors(optimizer):
        storage = tensor.untyped_storage()
        storages[tensor.device, storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())
