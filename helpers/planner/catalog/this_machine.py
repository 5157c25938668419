"""This machine as one to plan for: the memory of its device, and the roofline that was measured here."""

from typing import TYPE_CHECKING

from ..config import RecipeError
from .gpus import Gpu

if TYPE_CHECKING:  # its room imports PyTorch, which takes seconds
    from ...meter.roofline import Roofline

THIS = "this"  # what is given in place of a GPU's name


def this_machine() -> Gpu:
    """Return this machine's device: its CUDA GPU, or the processor with all its memory.

    Raises:
        RecipeError: its roofline was not measured yet.
    """
    import psutil
    import torch

    this_roofline()
    if not torch.cuda.is_available():
        return Gpu(THIS, psutil.virtual_memory().total, context=0)
    device = torch.cuda.get_device_properties(0)
    return Gpu(THIS, device.total_memory, capability=(device.major, device.minor))


def this_roofline() -> "Roofline":
    """Return the roofline that `python -m helpers roofline` keeps.

    Raises:
        RecipeError: it was not measured yet, or by another version of PyTorch.
    """
    from ...meter.roofline import kept_roofline

    roofline = kept_roofline()
    if roofline is None:
        raise RecipeError("This machine has not been measured yet: run python -m helpers roofline first.")
    return roofline
