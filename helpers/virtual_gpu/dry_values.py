"""What reads a tensor's memory without asking the dispatcher: in a dry run it gets stand-ins."""

from typing import Any

import torch
from torch import Tensor

from .hollow import is_hollow
from .homes import home_of
from .patches import Patches
from .stand_ins import fill
from .waits import Waits


def install(patches: Patches, waits: Waits) -> None:
    """Teach the methods of `torch.Tensor`, and count explicit synchronizations."""
    base_list, base_numpy, base_synchronize = Tensor.tolist, Tensor.numpy, torch.cuda.synchronize

    def tolist(self: Tensor) -> Any:
        return base_list(_with_values(self))

    def numpy(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        return base_numpy(self if home_of(self) is not None else _with_values(self), *args, **kwargs)

    def synchronize(device: Any = None) -> None:
        waits.synchronize("torch.cuda.synchronize")
        base_synchronize(device)

    patches.put_all(Tensor, {"tolist": tolist, "numpy": numpy})
    patches.put(torch.cuda, "synchronize", synchronize)


def _with_values(tensor: Tensor) -> Tensor:
    """Return `tensor`, on the CPU and with values."""
    if home_of(tensor) is not None:
        return tensor.detach().cpu()
    return fill(torch.empty(tensor.shape, dtype=tensor.dtype), tensor) if is_hollow(tensor) else tensor
