# row by row, the base before

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


def pack(examples, length, pad):
    rows = []
    for prompt, answer in examples:
        ids = [*prompt, *answer]
        labels = [-100 for _ in prompt] + [*answer]
        if len(ids) > length:
            raise ValueError(len(ids))
        if rows and len(rows[-1][0]) + len(ids) <= length:
            rows[-1] = (rows[-1][0] + ids, rows[-1][1] + labels, rows[-1][2] + list(range(len(ids))))
        else:
            rows.append((ids, labels, list(range(len(ids)))))
    full = []
    for ids, labels, positions in rows:
        n = length - len(ids)
        full.append((ids + n * [pad], labels + n * [-100], positions + list(range(n))))
    return tuple(torch.tensor([row[i] for row in full], dtype=torch.int64).reshape(-1, length) for i in range(3))


def exactly_right(logits, labels):
    written = logits.topk(1, dim=-1).indices.squeeze(-1).roll(1, 1)
    written[:, :1] = labels[:, :1]
    written[labels < 0] = labels[labels < 0]
    return torch.eq(written, labels).sum(1) == labels.shape[1]


def nf4_encode(weights):
    blocks = weights.clone().reshape(-1, 64)
    scales = blocks.abs().amax(1)
    blocks[scales > 0] /= scales[scales > 0, None]
    distances = torch.cdist(blocks.reshape(-1, 1), torch.tensor(LEVELS)[:, None], p=1)
    high, low = distances.argmin(1).reshape(-1, 2).to(torch.uint8).unbind(1)
    mean = scales.sum() / len(scales)
    rest = scales - mean
    tops = torch.tensor([rest[i : i + 256].abs().max() for i in range(0, len(rest), 256)])
    codes = torch.tensor([round(float(127 * r / tops[i // 256])) for i, r in enumerate(rest)], dtype=torch.int8)
    return high * 16 + low, codes, tops, mean


def nf4_decode(packed, codes, tops, mean):
    both = torch.stack([packed.div(16, rounding_mode="floor"), packed.remainder(16)], dim=-1).flatten()
    levels = torch.tensor(LEVELS)[both.long()]
    scales = torch.cat([c.float() * (t / 127) for c, t in zip(codes.split(256), tops, strict=True)]) + mean
    return (levels.reshape(-1, 64) * scales.unsqueeze(1)).reshape(-1)


def answer_log_probs(logits, labels):
    sums = []
    for outputs, row in zip(logits, labels, strict=True):
        places = (row != -100).nonzero().squeeze(1)
        logs = outputs[places - 1] - outputs[places - 1].logsumexp(-1, keepdim=True)
        sums.append(logs[torch.arange(len(places)), row[places]].sum())
    return torch.stack(sums)


def dpo_loss(chosen, rejected, ref_chosen, ref_rejected, beta):
    up, down = chosen - ref_chosen.data, rejected - ref_rejected.data
    zero = torch.zeros_like(up)
    return torch.logaddexp(zero, beta * (down - up)).sum() / len(up)


def serve(x, weight, A, B, scale, which):
    y = torch.einsum("ni,oi->no", x, weight)
    for i, k in enumerate(which):
        if k >= 0:
            y[i] += scale * B[k] @ (A[k] @ x[i])
    return y
