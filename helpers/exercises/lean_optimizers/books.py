"""Code books for the checks: drawn anew from each seed, so that no answer can know them."""

import torch
import torch.nn.functional as F
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


def rounded(x: Tensor, book: Tensor, block: int) -> Tensor:
    """Return what is left of `x` after rounding to the nearest values of `book`, in blocks of this size."""
    rows = F.pad(x.flatten(), (0, -x.numel() % block)).view(-1, block)
    scales = rows.abs().amax(1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    place = torch.bucketize(rows / scales, (book[1:] + book[:-1]) / 2)
    return (book[place] * scales).flatten()[: x.numel()].view(x.shape)
