# steps counted beside the state

from helpers.exercises.reference.lean_optimizers import decode, encode

import torch


class Adam8(torch.optim.Optimizer):
    def __init__(self, params, books, lr=1e-3, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})
        self.books, self.taken = books, {}

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in filter(lambda p: p.grad is not None, group["params"]):
                self.taken[p] = self.taken.get(p, 0) + 1
                self.move(p, group, self.taken[p])

    def move(self, p, group, t):
        old = self.state[p].get("moments", [0.0, 0.0])
        new = []
        for was, seen, beta in zip(old, (p.grad, p.grad * p.grad), group["betas"]):
            new.append(beta * self.whole(was, p) + (1 - beta) * seen)
        m, v = (moment / (1 - beta**t) for moment, beta in zip(new, group["betas"]))
        p -= group["lr"] * m / (v.sqrt() + group["eps"])
        pairs = zip(new, self.books)
        self.state[p]["moments"] = [{"c": encode(x, b, 256), "b": b} if p.numel() >= 4096 else x for x, b in pairs]

    def whole(self, was, p):
        return decode(*was["c"], was["b"], 256, p.shape) if isinstance(was, dict) else was
