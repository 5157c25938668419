# the reference with other words

import torch
import torch.nn.functional as F


def route(logits, k, bias=None):
    p = torch.softmax(logits, 1)
    biased = p if bias is None else p.detach() + bias
    _, chosen = biased.topk(k, sorted=False)
    w = torch.take_along_dim(p, chosen, 1)
    return chosen, F.normalize(w, p=1, dim=1)


def permute(x, chosen, experts):
    flat = chosen.ravel()
    source = flat.argsort()
    counts = torch.zeros(experts, dtype=torch.long, device=x.device).index_add(0, flat, torch.ones_like(flat))
    every = x[:, None].expand(-1, chosen.shape[1], -1).flatten(0, 1)
    return every[source], counts, source


def grouped(rows, counts, up, down):
    ends = counts.cumsum(0).tolist()
    return torch.cat([expert(rows[e - n : e], u, d) for e, n, u, d in zip(ends, counts.tolist(), up, down)])


def expert(rows, up, down):
    return F.linear(F.gelu(F.linear(rows, up)), down)


def grouped_kernel(rows, counts, up, down):
    ends = counts.cumsum(0).int()
    return F.grouped_mm(F.gelu(F.grouped_mm(rows, up.transpose(1, 2), offs=ends)), down.transpose(1, 2), offs=ends)


def unpermute(rows, source, weights):
    placed = torch.zeros_like(rows)
    placed = placed.scatter(0, source[:, None].expand_as(rows), rows)
    placed = placed * weights.flatten()[:, None]
    return placed.unflatten(0, weights.shape).sum(1)


def balance_loss(logits, chosen):
    counts = chosen.flatten().bincount(minlength=logits.shape[1]).to(logits.dtype)
    return logits.shape[1] / chosen.numel() / len(logits) * (logits.softmax(1) @ counts).sum()


def nudge(bias, counts, rate):
    counts = counts.double()
    bias.copy_(bias + rate * (counts.mean() - counts).sign())


def within_capacity(chosen, experts, capacity):
    flat = chosen.flatten()
    order = flat.argsort(stable=True)
    first = torch.searchsorted(flat[order].contiguous(), flat[order].contiguous())
    place = torch.empty_like(flat)
    place[order] = torch.arange(len(flat), device=flat.device) - first
    return (place < capacity).view(chosen.shape)
