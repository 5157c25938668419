"""How many bytes autograd keeps between the forward and the backward pass."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor


def saved_tensor_bytes(forward: Callable[[], object], besides: Iterable[Tensor] = ()) -> int:
    """Run `forward()` and return the bytes of the tensors that are saved for its backward pass.

    It asks autograd itself, so it sees what a compiled graph saves, too, which the meter's count by tenants cannot.

    Args:
        forward: called once; its result is let go.
        besides: tensors that are there anyway (parameters, inputs) and do not count.
    """
    kept: dict[int, int] = {}
    alive = []  # so that no address is used twice

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        alive.append(storage)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = forward()
    there = {tensor.untyped_storage().data_ptr() for tensor in besides}
    del result
    return sum(nbytes for address, nbytes in kept.items() if address not in there)
