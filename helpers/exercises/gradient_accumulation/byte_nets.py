"""A network small enough to train to a given loss many times: how many rows does it need with a given batch size?"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ...core.data import english

_SHAPES = ((128, 8), (4 * 8, 32), (32, 128))  # embeddings of 128 bytes; a hidden layer; logits
_SIZES = [math.prod(shape) for shape in _SHAPES]
_SCALES = (1.0, 32**-0.5, 32**-0.5)
_TESTED = 512  # rows of unseen text on which the loss is measured
_DECAY = 0.9  # Adam's beta_1


class ByteNets:
    """Networks of 6,000 parameters that predict the next byte of English text from four bytes.

    Several copies train at once, as one batched network, each with its own learning rate and beta_2.
    """

    def __init__(self, device: torch.device) -> None:
        text = english(device)
        self.device = device
        self.train, self.test = text.train_x.clamp(max=127), text.test_x.clamp(max=127)

    def rows_until(
        self, target: float, batch: int, rates: Sequence[float], betas: Sequence[float], seed: int
    ) -> tuple[float, list[float]]:
        """Train a copy with Adam for each learning rate and beta_2 until the first reaches the loss `target`.

        Args:
            target: mean cross-entropy on unseen text.
            batch: rows per step.
            rates, betas: of the copies. All start from the same weights and see the same rows.
            seed: of weights and rows.

        Returns:
            the rows that each copy has seen by then (infinity: none reached it in 150,000), and the copies' losses.
        """
        generator, copies = torch.Generator().manual_seed(seed), len(rates)
        test = self._draw(self.test, _TESTED, generator)
        weights = self._first(generator).repeat(copies, 1).requires_grad_()  # (copies, parameters)
        lr, beta_2 = (torch.tensor(values, device=self.device)[:, None] for values in (rates, betas))
        mean, square = torch.zeros_like(weights), torch.zeros_like(weights)
        losses = torch.full((copies,), math.inf)
        for update in range(1, 150_000 // batch + 1):
            x, y = self._draw(self.train, batch, generator)
            total = copies * F.cross_entropy(self._logits(weights, x).flatten(0, 1), y.repeat(copies))
            (g,) = torch.autograd.grad(total, weights)
            with torch.no_grad():
                mean.lerp_(g, 1 - _DECAY)
                square.mul_(beta_2).add_((1 - beta_2) * g * g)
                size = (square / (1 - beta_2**update)).sqrt() + 1e-8
                weights -= lr * (mean / (1 - _DECAY**update)) / size
                if update % max(1, 256 // batch) == 0:
                    losses = self._losses(weights, *test)
                    if losses.min() <= target:
                        return update * batch, losses.tolist()
        return math.inf, losses.tolist()

    def _draw(self, stream: Tensor, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return n times four bytes, (n, 4), and the byte that follows them, (n,)."""
        at = torch.randint(len(stream) - 4, (n,), generator=generator).to(self.device)
        return stream[at[:, None] + torch.arange(4, device=self.device)], stream[at + 4]

    def _first(self, generator: torch.Generator) -> Tensor:
        """Return the parameters of one network, (1, P)."""
        drawn = [torch.randn(n, generator=generator) * scale for n, scale in zip(_SIZES, _SCALES, strict=True)]
        return torch.cat(drawn)[None].to(self.device)

    @staticmethod
    def _logits(weights: Tensor, x: Tensor) -> Tensor:
        """Map bytes x (n, 4) to logits (copies, n, 128)."""
        parts = zip(weights.split(_SIZES, dim=1), _SHAPES, strict=True)
        table, hidden, out = (p.view(len(weights), *shape) for p, shape in parts)
        return torch.tanh(table[:, x].flatten(2) @ hidden) @ out

    def _losses(self, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
        logits = self._logits(weights, x).transpose(1, 2)  # (copies, 128, rows)
        return F.cross_entropy(logits, y.expand(len(weights), -1), reduction="none").mean(1)
