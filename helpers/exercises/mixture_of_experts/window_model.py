"""A language model without attention: the next byte from the last eight (Bengio et al. 2003), in residual blocks.

What it learns in a few hundred steps is which bytes follow which, and that is a matter of how much its blocks can hold:
the smallest model in which a mixture of experts has something to be better at.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

SEES = 8  # bytes
WIDTH = 64  # of the residual stream


class WindowModel(nn.Module):
    """Embeds the last `SEES` bytes, adds what each block makes of it, and returns logits.

    Args:
        make_block: makes one block, from and to (n, WIDTH). The same seed for every model, so that all begin alike.
    """

    def __init__(self, make_block: Callable[[], nn.Module], blocks: int = 2, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(256, WIDTH // 4)
        self.enter = nn.Linear(SEES * WIDTH // 4, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 256, bias=False)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(blocks))
        self.blocks = nn.ModuleList(make_block() for _ in range(blocks))

    def forward(self, ids: Tensor) -> Tensor:
        """Map bytes (n, SEES) to logits of the next one (n, 256)."""
        x = self.enter(self.embedding(ids).flatten(1))
        for norm, block in zip(self.norms, self.blocks, strict=True):
            x = x + block(norm(x))
        return self.head(self.norm(x))


def windows(x: Tensor, y: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Return the windows of text that begin at `at` (n,), and the byte after each: (n, SEES) and (n,)."""
    return x[at[:, None] + torch.arange(SEES, device=x.device)], y[at + SEES - 1]
