# a hook on the linear layer

import torch
from torch import nn


class LoRALinear(nn.Module):
    def __init__(self, linear, rank, alpha, dropout):
        super().__init__()
        for p in linear.parameters():
            p.requires_grad_(False)
        self.base, self.drop, self.ratio, self.on = linear, nn.Dropout(dropout), alpha / rank, True
        self.down = nn.Parameter(linear.weight.new_empty(rank, linear.in_features).normal_(std=0.02))
        self.up = nn.Parameter(linear.weight.new_zeros(linear.out_features, rank))
        linear.register_forward_hook(self.correct)

    def correct(self, _, args, output):
        if self.on:
            return output + self.drop(args[0]) @ self.down.T @ self.up.T * self.ratio

    def forward(self, x):
        return self.base(x)

    def toggle(self, sign):
        with torch.no_grad():
            self.base.weight.addmm_(self.up, self.down, alpha=sign * self.ratio)
        self.on = not self.on

    def merge(self):
        if self.on:
            self.toggle(1)

    def unmerge(self):
        if not self.on:
            self.toggle(-1)
