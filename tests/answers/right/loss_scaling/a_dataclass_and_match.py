# a dataclass, and match

from dataclasses import dataclass

import torch


def gradients_of(optimizer):
    for group in optimizer.param_groups:
        yield from (p.grad for p in group["params"] if p.grad is not None)


@dataclass
class LossScaler:
    init_scale: float = 2.0**16
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    good: int = 0
    finite: bool | None = None

    def __post_init__(self):
        self.value = self.init_scale

    def get_scale(self):
        return float(self.value)

    def scale(self, loss):
        return torch.mul(loss, self.value)

    @torch.no_grad()
    def unscale_(self, optimizer):
        checks = [True]
        for gradient in gradients_of(optimizer):
            gradient /= self.value
            checks.append(bool(gradient.isfinite().all()))
        self.finite = all(checks)

    def step(self, optimizer):
        if self.finite is None:
            self.unscale_(optimizer)
        if self.finite:
            optimizer.step()
        return self.finite

    def update(self):
        match self.finite, self.good + 1 == self.growth_interval:
            case False, _:
                self.value, self.good = self.value * self.backoff_factor, 0
            case True, True:
                self.value, self.good = self.value * self.growth_factor, 0
            case _:
                self.good += 1
        self.finite = None
