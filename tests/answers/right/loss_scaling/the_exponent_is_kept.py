# the exponent is kept

import math

import torch


class LossScaler:
    def __init__(self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        self.log = math.log2(init_scale)
        self.up, self.down, self.every = math.log2(growth_factor), math.log2(backoff_factor), growth_interval
        self.run, self.found = 0, None

    def get_scale(self):
        return 2.0**self.log

    def scale(self, loss):
        return torch.ldexp(loss, torch.tensor(self.log))

    def unscale_(self, optimizer):
        self.found = False
        for group in optimizer.param_groups:
            for p in filter(lambda p: p.grad is not None, group["params"]):
                p.grad.mul_(2.0**-self.log)
                self.found |= bool((p.grad - p.grad).ne(0).any())  # inf - inf and nan - nan are NaN

    def step(self, optimizer):
        self.unscale_(optimizer) if self.found is None else None
        return False if self.found else (optimizer.step(), True)[1]

    def update(self):
        self.run = 0 if self.found else self.run + 1
        self.log += self.down if self.found else self.up if self.run == self.every else 0.0
        self.run %= self.every
        self.found = None
