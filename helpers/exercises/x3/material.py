"""What the ranks train: a model with traps, rows that differ, and how numbers are compared and reported."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from ..probing.two_devices import OnHost

EXACT = 1e-6  # relative


class _Norm(nn.BatchNorm1d):
    """BatchNorm that takes a single row in training mode, too, so that a judge can say which mode it is in."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and len(x) == 1:
            return nn.functional.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias)
        return super().forward(x)


class Net(nn.Module):
    """A classifier in FP64 with a weight that two layers share and a bias that is frozen."""

    def __init__(self, dropout: float = 0.0, norm: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 5)
        self.wide = nn.Sequential(nn.Linear(12, 40), nn.Tanh(), nn.Linear(40, 12))
        self.second.weight = self.first.weight
        self.second.bias.requires_grad_(False)
        self.norm = _Norm(12) if norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.functional = dropout  # as a function, it goes by the mode of the whole model
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.second(torch.tanh(self.first(x))))
        x = nn.functional.dropout(x, self.functional, self.training) if self.functional else x
        return self.head(self.dropout(self.norm(x + self.wide(x))))


class Rows(Dataset):
    """Rows whose losses differ a great deal, and a log of which were asked for."""

    def __init__(self, seed: int, n: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        scale = torch.linspace(0.2, 3.0, n, dtype=torch.float64)[:, None]
        self.x = torch.randn(n, 12, dtype=torch.float64, generator=generator) * scale
        self.y = torch.randint(5, (n,), generator=generator)
        self.asked: list[int] = []

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        self.asked.append(int(i))
        return self.x[i].as_subclass(OnHost), self.y[i].as_subclass(OnHost)


def weights(model: nn.Module) -> list[float]:
    """Return all parameters of `model` as one list."""
    return torch.cat([p.detach().flatten() for p in model.parameters()]).cpu().tolist()


def near(a: Any, b: float) -> bool:
    """Say whether a returned `a` is the number `b`, to rounding."""
    return isinstance(a, int | float) and abs(a - b) <= EXACT * max(1.0, abs(b))


def as_measured(value: Any) -> Any:
    """Keep what a report can carry; name the type of what it cannot."""
    return value if isinstance(value, int | float | str | None) else type(value).__name__
