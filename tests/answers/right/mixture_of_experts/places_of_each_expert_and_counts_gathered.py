# places of each expert, and counts gathered

import torch
import torch.nn.functional as F


def route(logits, k, bias=None):
    scores = logits.softmax(-1)
    _, chosen = torch.sort(scores.detach() + (0 if bias is None else bias), dim=1, descending=True)
    chosen = chosen[:, :k]
    return chosen, logits.gather(1, chosen).softmax(-1)


def permute(x, chosen, experts):
    flat = chosen.reshape(-1)
    places = [torch.nonzero(flat == e)[:, 0] for e in range(experts)]
    source = torch.cat(places)
    tokens = torch.div(source, chosen.shape[1], rounding_mode="floor")
    return x.index_select(0, tokens), torch.tensor([len(p) for p in places]), source


def grouped(rows, counts, up, down):
    y, at = 0 * rows + 0 * (up.sum() + down.sum()), 0
    for e, n in enumerate(counts.tolist()):
        if n:
            y[at : at + n] = F.linear(F.gelu(F.linear(rows[at : at + n], up[e])), down[e])
        at += n
    return y


def grouped_kernel(rows, counts, up, down):
    offsets = torch.cumsum(counts, 0, dtype=torch.int32)
    experts = [up.permute(0, 2, 1), down.permute(0, 2, 1)]
    for i, matrix in enumerate(experts):
        rows = torch.nn.functional.grouped_mm(F.gelu(rows) if i else rows, matrix, offs=offsets)
    return rows


def unpermute(rows, source, weights):
    n, k = weights.shape
    weighed = rows * weights.reshape(-1)[source][:, None]
    return torch.zeros(n, rows.shape[1], dtype=rows.dtype, device=rows.device).index_add(0, source // k, weighed)


def balance_loss(logits, chosen):
    n, experts = logits.shape
    f = F.one_hot(chosen, experts).to(logits.dtype).mean(dim=(0, 1))
    return experts * torch.dot(f, logits.softmax(-1).mean(0))


def nudge(bias, counts, rate):
    mean = counts.sum() / len(counts)
    bias[counts > mean] -= rate
    bias[counts < mean] += rate


def within_capacity(chosen, experts, capacity):
    room, kept = [capacity] * experts, torch.zeros_like(chosen, dtype=torch.bool)
    for i, row in enumerate(chosen.tolist()):
        for j, e in enumerate(row):
            kept[i, j] = room[e] > 0
            room[e] -= 1
    return kept
