"""How many bytes autograd saves between the forward and the backward pass."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor


def saved_tensor_bytes(forward: Callable[[], object], besides: Iterable[Tensor] = ()) -> int:
    """Run `forward()` and return the bytes of the tensors that are saved for its backward pass.

    It asks autograd itself, so it includes what a compiled graph saves, which the meter's count by category cannot see.

    Args:
        forward: called once; its result is dropped.
        besides: tensors that exist anyway (parameters, inputs) and do not count.
    """
    saved: dict[int, int] = {}  # address -> bytes
    alive = []  # so that no address is used twice

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        alive.append(storage)
        return tensor.detach()  # an operation that saves its own output would otherwise keep it alive

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = forward()
    excluded = {tensor.untyped_storage().data_ptr() for tensor in besides}
    del result
    return sum(nbytes for address, nbytes in saved.items() if address not in excluded)
