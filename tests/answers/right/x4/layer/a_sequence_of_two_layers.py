# a sequence of two layers

import torch
from torch import nn


class LoRALinear(nn.Module):
    def __init__(self, linear, rank, alpha, dropout):
        super().__init__()
        self.linear = linear
        linear.requires_grad_(False)
        down = nn.Linear(linear.in_features, rank, bias=False)
        up = nn.Linear(rank, linear.out_features, bias=False)
        nn.init.zeros_(up.weight)
        self.path = nn.Sequential(nn.Dropout(dropout), down, up).to(linear.weight.device, linear.weight.dtype)
        self.register_buffer(
            "scale", torch.tensor(alpha / rank, dtype=linear.weight.dtype, device=linear.weight.device)
        )
        self.delta = None

    def forward(self, x):
        return self.linear(x) + (self.scale * self.path(x) if self.delta is None else 0)

    def merge(self):
        if self.delta is None:
            with torch.no_grad():
                self.delta = self.scale * self.path[2].weight @ self.path[1].weight
                self.linear.weight += self.delta

    def unmerge(self):
        if self.delta is not None:
            with torch.no_grad():
                self.linear.weight -= self.delta
            self.delta = None
