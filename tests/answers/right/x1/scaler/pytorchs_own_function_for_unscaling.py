# PyTorch's own function for unscaling

import torch


class DynamicLossScaler:
    def __init__(self, init_scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        self.growth, self.backoff, self.interval = growth_factor, backoff_factor, growth_interval
        self._scale, self._tracker = torch.tensor(init_scale), torch.tensor(0, dtype=torch.int32)
        self._found = {}

    def get_scale(self):
        return self._scale.item()

    def scale(self, loss):
        return loss * self._scale.to(loss.device)

    def unscale_(self, optimizer):
        self._found[optimizer] = torch.zeros(1)
        grads = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
        for grad in grads:
            found = torch.zeros(1, device=grad.device)
            torch._amp_foreach_non_finite_check_and_unscale_([grad], found, 1 / self._scale.to(grad.device))
            self._found[optimizer] += found.cpu()

    def step(self, optimizer):
        if optimizer not in self._found:
            self.unscale_(optimizer)
        if sum(self._found.values()).item():
            return False
        optimizer.step()
        return True

    def update(self):
        found = sum(self._found.values())
        torch._amp_update_scale_(self._scale, self._tracker, found, self.growth, self.backoff, self.interval)
        self._found = {}
