"""The 8-bit Adam that learners write in the lab on lean optimizers, with its codebooks of equal factors."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from ...core.device import pick_device


def adam8(params: Iterable[Tensor], lr: float) -> torch.optim.Optimizer:
    """Return the course's own version of it: moments in blocks of 256, a byte per number."""
    from ..reference.lean_optimizers import Adam8

    first = torch.logspace(math.log10(1e-4), 0, 127)
    zero = torch.zeros(1)
    books = torch.cat([-first.flip(0), zero, first]), torch.cat([zero, torch.logspace(math.log10(1e-7), 0, 255)])
    return Adam8(params, tuple(book.to(pick_device()) for book in books), lr)
