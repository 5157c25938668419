"""Tell whether data are the same."""

import torch
from torch import Tensor

OTHER_DATA = (
    "The data that this check loads are not the course's: something changed where they come from. Restart the kernel "
    "and leave what is outside of your answer as it is."
)


def fingerprint(*tensors: Tensor) -> list[int]:
    """Return a number for each tensor, which changes with an element (by a thousandth) and with their order."""
    whole = [(tensor.detach().cpu().double() * 1000).round().long().flatten() for tensor in tensors]
    return [int((numbers * torch.arange(1, len(numbers) + 1)).sum()) for numbers in whole]
