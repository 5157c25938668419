# dropout rests while merged

import torch
import torch.nn.functional as F
from torch import nn


class LoRALinear(nn.Module):
    def __init__(self, linear, rank, alpha, dropout):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.A = nn.Parameter(torch.randn_like(linear.weight[:1].expand(rank, -1)) / rank)
        self.B = nn.Parameter(torch.zeros_like(linear.weight[:, :1].expand(-1, rank)))
        self.scale, self.dropout, self.saved = alpha / rank, nn.Dropout(dropout), None

    def forward(self, x):
        if self.saved is not None:
            return self.linear(x)
        if not self.training:
            return F.linear(x, self.linear.weight + self.scale * self.B @ self.A, self.linear.bias)
        rows = self.dropout(x).reshape(-1, x.shape[-1])
        return self.linear(x) + (rows @ self.A.T @ self.B.T * self.scale).reshape(*x.shape[:-1], -1)

    @torch.no_grad()
    def merge(self):
        if self.saved is None:
            self.saved = self.linear.weight.clone()
            self.linear.weight.addmm_(self.B, self.A, alpha=self.scale)
            self.dropout.eval()

    @torch.no_grad()
    def unmerge(self):
        if self.saved is not None:
            self.linear.weight.copy_(self.saved)
            self.dropout.train(self.training)
            self.saved = None
