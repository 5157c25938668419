"""Code books for the checks: drawn anew from each seed, so that no answer can know them."""

import torch
from torch import Tensor

from ...core.device import pick_device


def drawn_book(seed: int, signed: bool) -> Tensor:
    """Return 255 or 256 numbers in ascending order, 0 and 1 among them: exponents evenly spread, and jittered."""
    generator = torch.Generator().manual_seed(seed)
    half = 127 if signed else 255
    exponents = torch.linspace(-6, 0, half) + torch.rand(half, generator=generator) * 4 / half
    positive = 10 ** (exponents - exponents[-1])
    book = torch.cat([-positive.flip(0), torch.zeros(1), positive] if signed else [torch.zeros(1), positive])
    return book.to(pick_device())
