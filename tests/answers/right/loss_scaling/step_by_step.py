# step by step

import torch


class LossScaler:
    READY, CLEAN, DIRTY = range(3)

    def __init__(self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        self.s, self.grow, self.shrink, self.n = init_scale, growth_factor, backoff_factor, growth_interval
        self.state, self.since = self.READY, 0

    def get_scale(self):
        return self.s

    def scale(self, loss):
        return self.s * loss

    def unscale_(self, optimizer):
        flat = []
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.copy_(p.grad / self.s)
                    flat.append(p.grad.flatten())
        self.state = self.CLEAN if torch.cat(flat).abs().amax() < torch.inf else self.DIRTY

    def step(self, optimizer):
        if self.state == self.READY:
            self.unscale_(optimizer)
        stepped = self.state == self.CLEAN
        if stepped:
            optimizer.step()
        return stepped

    def update(self):
        if self.state == self.DIRTY:
            self.s, self.since = self.s * self.shrink, 0
        else:
            self.since += 1
            if self.since >= self.n:
                self.s, self.since = self.s * self.grow, 0
        self.state = self.READY
