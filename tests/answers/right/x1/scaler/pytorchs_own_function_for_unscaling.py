# PyTorch's own function for unscaling

import torch


class DynamicLossScaler:
    def __init__(self, init_scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        self.growth, self.backoff, self.interval = growth_factor, backoff_factor, growth_interval
        self._scale, self._tracker = torch.tensor(init_scale), torch.tensor(0, dtype=torch.int32)
        self._found = None

    def get_scale(self):
        return self._scale.item()

    def scale(self, loss):
        return loss * self._scale.to(loss.device)

    def unscale_(self, optimizer):
        self._found = torch.zeros(1)
        grads = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
        for grad in grads:
            found = torch.zeros(1, device=grad.device)
            torch._amp_foreach_non_finite_check_and_unscale_([grad], found, 1 / self._scale.to(grad.device))
            self._found += found.cpu()

    def step(self, optimizer):
        if self._found is None:
            self.unscale_(optimizer)
        if self._found.item():
            return False
        optimizer.step()
        return True

    def update(self):
        torch._amp_update_scale_(self._scale, self._tracker, self._found, self.growth, self.backoff, self.interval)
        self._found = None
