"""How many bytes of a GPU a model and its optimizers hold."""

import itertools
from collections.abc import Iterable

import torch
from torch import nn

from .lifetime import CUDA_ROUNDING
from .optimizer_state import state_tensors
from .tensor_parts import inner_tensors, sparse_parts


def known_bytes(model: nn.Module | None, optimizers: Iterable[torch.optim.Optimizer], device: torch.device) -> int:
    """Return the bytes of parameters, buffers, gradients and optimizer state on `device`, as CUDA's allocator counts.

    Args:
        device: a GPU; without an index, the current one.
    """
    index = torch.cuda.current_device() if device.index is None else device.index
    optimizers = list(optimizers)
    tensors = [] if model is None else [*model.parameters(), *model.buffers()]
    tensors += [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    tensors += [tensor.grad for tensor in tensors if tensor.grad is not None]
    parts = (part for tensor in tensors for part in sparse_parts(tensor) or inner_tensors(tensor))
    sizes = {}
    for tensor in itertools.chain(parts, *map(state_tensors, optimizers)):
        if tensor.device == torch.device("cuda", index):
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = -(-storage.nbytes() // CUDA_ROUNDING) * CUDA_ROUNDING
    return sum(sizes.values())
