# a mask by hand

import torch
from torch import nn


class LoRALinear(nn.Module):
    def __init__(self, linear, rank, alpha, dropout):
        super().__init__()
        self.add_module("linear", linear.requires_grad_(False))
        self.A = nn.Parameter(nn.init.orthogonal_(torch.empty(rank, linear.in_features)).to(linear.weight))
        self.B = nn.Parameter(torch.zeros(linear.out_features, rank).to(linear.weight))
        self.rank, self.alpha, self.p, self.original = rank, alpha, dropout, None

    def forward(self, x):
        y = self.linear(x)
        if self.original is None:
            if self.training and self.p > 0:
                x = x * (torch.rand_like(x) >= self.p) / (1 - self.p)
            y = y + (x @ self.A.t()) @ self.B.t() * (self.alpha / self.rank)
        return y

    @torch.no_grad()
    def merge(self):
        if self.original is None:
            self.original = self.linear.weight.clone()
            self.linear.weight.copy_(self.original + self.alpha / self.rank * (self.B @ self.A))

    @torch.no_grad()
    def unmerge(self):
        if self.original is not None:
            self.linear.weight.copy_(self.original)
            self.original = None
