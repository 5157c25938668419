# momentum as a sum

from helpers.exercises.reference.muon_and_in_place import orthogonalize

import torch


class Muon(torch.optim.Optimizer):
    def __init__(self, matrices, lr):
        super().__init__(matrices, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                total = self.state[p].setdefault("momentum", torch.zeros_like(p))
                total.mul_(0.95).add_(p.grad)  # 20 times M; the size does not matter to `orthogonalize`
                step = orthogonalize(total.mul(0.95).add_(p.grad), 5)
                p.sub_(step, alpha=group["lr"] * 0.2 * max(p.shape) ** 0.5)
