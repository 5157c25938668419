# thin matmuls and middles

import math

from helpers.exercises.lora.nf4 import LEVELS

import torch
from torch import nn


class LoRA(nn.Module):
    def __init__(self, linear, rank, alpha):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        like = {"device": linear.weight.device, "dtype": linear.weight.dtype}
        self.A = nn.Parameter(torch.randn(rank, linear.in_features, **like) / math.sqrt(linear.in_features))
        self.B = nn.Parameter(torch.zeros(linear.out_features, rank, **like))
        self.scale = alpha / rank

    def forward(self, x):
        return self.linear(x) + (self.scale * x @ self.A.mT) @ self.B.mT


def nf4_encode(weights):
    levels = torch.tensor(LEVELS)
    blocks = weights.reshape(-1, 64)
    scales = blocks.abs().max(dim=1).values
    middles = (levels[1:] + levels[:-1]) / 2
    index = torch.bucketize(blocks / scales.clamp(min=1e-20)[:, None], middles).reshape(-1, 2)
    packed = (16 * index[:, 0] + index[:, 1]).to(torch.uint8)
    mean = scales.mean()
    codes, tops = [], []
    for group in (scales - mean).split(256):
        tops.append(group.abs().max())
        codes.append(torch.where(group == 0, 0, torch.round(127 * group / tops[-1])).to(torch.int8))
    return packed, torch.cat(codes), torch.stack(tops), mean


def nf4_decode(packed, codes, tops, mean):
    levels = torch.tensor(LEVELS)
    weights = torch.empty(2 * len(packed))
    weights[::2] = levels[(packed // 16).int()]
    weights[1::2] = levels[(packed % 16).int()]
    group = torch.arange(len(codes)) // 256
    scales = codes * (tops / 127)[group] + mean
    return weights * scales.repeat_interleave(64)
