# einsum

import torch
import torch.nn.functional as F
from torch import nn


class LoRALinear(nn.Module):
    def __init__(self, linear, rank, alpha, dropout):
        super().__init__()
        self.linear, self.p, self.scale, self.merged = linear, dropout, alpha / rank, False
        linear.weight.requires_grad = False
        if linear.bias is not None:
            linear.bias.requires_grad = False
        like = dict(device=linear.weight.device, dtype=linear.weight.dtype)
        self.A = nn.Parameter(torch.randn(rank, linear.in_features, **like) / rank**0.5)
        self.B = nn.Parameter(torch.zeros(linear.out_features, rank, **like))

    def forward(self, x):
        y = self.linear(x)
        if self.merged:
            return y
        dropped = F.dropout(x, self.p, training=self.training)
        return y + self.scale * torch.einsum("...i,ri,or->...o", dropped, self.A, self.B)

    def merge(self):
        if not self.merged:
            self.linear.weight.data += self.scale * torch.einsum("or,ri->oi", self.B.data, self.A.data)
        self.merged = True

    def unmerge(self):
        if self.merged:
            self.linear.weight.data -= self.scale * torch.einsum("or,ri->oi", self.B.data, self.A.data)
        self.merged = False
