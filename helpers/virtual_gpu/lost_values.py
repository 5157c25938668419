"""Models made before a virtual GPU and moved onto it: a dry run leaves them without values, which a warning says."""

import gc
import warnings
import weakref
from collections.abc import Iterator
from itertools import chain

from torch import Tensor, nn

from .hollow import is_hollow, is_made_up


class EarlierModels:
    """The modules that exist now, found among all of Python's objects."""

    def __init__(self) -> None:
        objects = gc.get_objects()  # `type`, not `isinstance`: some objects load a library when asked for their class
        self._modules = weakref.WeakSet(thing for thing in objects if issubclass(type(thing), nn.Module))
        self._before = {id(tensor) for module in self._modules for tensor in _lost(module)}  # in an earlier block

    def warn_of_lost_values(self, stacklevel: int) -> None:
        """Warn, in one line, of those among them whose parameters or buffers have no data anymore, or made-up data."""
        lost = [module for module in self._modules if any(id(tensor) not in self._before for tensor in _lost(module))]
        inner = {id(child) for module in lost for child in module.modules() if child is not module}
        names = sorted({type(module).__name__ for module in lost if id(module) not in inner})
        if names:
            warnings.warn(
                f"The values of {', '.join(names)} are lost: a dry run computes nothing, and the model was made before "
                "the block and moved onto its GPU. Create the model inside the block, or move a copy of it.",
                stacklevel=stacklevel + 1,
            )


def _lost(module: nn.Module) -> Iterator[Tensor]:
    """Yield the parameters and buffers that have no data, or made-up data."""
    for tensor in chain(module.parameters(), module.buffers()):
        if is_hollow(tensor) or is_made_up(tensor):
            yield tensor
