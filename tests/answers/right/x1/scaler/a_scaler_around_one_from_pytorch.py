# a scaler around one from PyTorch

import torch


class DynamicLossScaler:
    def __init__(self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        self.inner = torch.amp.GradScaler(
            "cpu",
            init_scale=init_scale,
            growth_factor=growth_factor,
            backoff_factor=backoff_factor,
            growth_interval=growth_interval,
        )
        self.inner.scale(torch.zeros(()))  # makes its tensors
        self.unscaled = []

    def get_scale(self):
        return self.inner.get_scale()

    def scale(self, loss):
        return loss * self.get_scale()

    def unscale_(self, optimizer):
        self.inner.unscale_(optimizer)
        self.unscaled.append(optimizer)

    def step(self, optimizer):
        if optimizer not in self.unscaled:
            self.unscale_(optimizer)
        found = [self.inner._per_optimizer_states[id(one)]["found_inf_per_device"] for one in self.unscaled]
        bad = any(value.item() for devices in found for value in devices.values())
        if not bad:
            self.inner.step(optimizer)
        return not bad

    def update(self):
        self.inner.update()
        self.unscaled = []
