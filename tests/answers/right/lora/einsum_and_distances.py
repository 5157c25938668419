# einsum and distances

from helpers.exercises.lora.nf4 import LEVELS

import torch
from torch import nn


class LoRA(nn.Module):
    def __init__(self, linear, rank, alpha):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        like = {"device": linear.weight.device, "dtype": linear.weight.dtype}
        self.A = nn.Parameter(torch.rand(rank, linear.in_features, **like) - 0.5)
        self.B = nn.Parameter(torch.zeros(linear.out_features, rank, **like))
        self.scale = alpha / rank

    def forward(self, x):
        low = torch.einsum("...i,ri->...r", x, self.A)
        return self.linear(x) + torch.einsum("...r,or->...o", low, self.B) * self.scale


def nf4_encode(weights):
    blocks = weights.clone().reshape(-1, 64)
    scales = blocks.abs().amax(1)
    blocks[scales > 0] /= scales[scales > 0, None]
    distances = torch.cdist(blocks.reshape(-1, 1), torch.tensor(LEVELS)[:, None], p=1)
    high, low = distances.argmin(1).reshape(-1, 2).to(torch.uint8).unbind(1)
    mean = scales.sum() / len(scales)
    rest = scales - mean
    tops = torch.tensor([rest[i : i + 256].abs().max() for i in range(0, len(rest), 256)])
    codes = [round(float(127 * r / tops[i // 256])) if r else 0 for i, r in enumerate(rest)]
    codes = torch.tensor(codes, dtype=torch.int8)
    return high * 16 + low, codes, tops, mean


def nf4_decode(packed, codes, tops, mean):
    both = torch.stack([packed.div(16, rounding_mode="floor"), packed.remainder(16)], dim=-1).flatten()
    levels = torch.tensor(LEVELS)[both.long()]
    scales = torch.cat([c.float() * (t / 127) for c, t in zip(codes.split(256), tops, strict=True)]) + mean
    return (levels.reshape(-1, 64) * scales.unsqueeze(1)).reshape(-1)
