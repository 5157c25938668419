# a subclass of nn.Linear that shares the weight

import torch
from torch import nn


class LoRALinear(nn.Linear):
    def __init__(self, linear, rank, alpha, dropout):
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.requires_grad_(False)
        self.lora = nn.ParameterDict(
            {
                "A": nn.init.xavier_normal_(torch.empty_like(linear.weight[:1]).repeat(rank, 1)),
                "B": torch.zeros_like(linear.weight[:, :1]).repeat(1, rank),
            }
        )
        self.alpha, self.rank, self.drop, self.state = alpha, rank, nn.Dropout(dropout), "apart"

    @property
    def delta(self):
        return self.lora["B"] @ self.lora["A"] * self.alpha / self.rank

    def forward(self, x):
        y = super().forward(x)
        return y if self.state == "merged" else y + self.drop(x) @ self.delta.mT

    @torch.no_grad()
    def merge(self):
        if self.state == "apart":
            self.weight.add_(self.delta)
            self.state = "merged"

    @torch.no_grad()
    def unmerge(self):
        if self.state == "merged":
            self.weight.sub_(self.delta)
            self.state = "apart"
