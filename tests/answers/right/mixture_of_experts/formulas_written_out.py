# formulas written out

import torch
import torch.nn.functional as F


def route(logits, k, bias=None):
    bias = torch.zeros(logits.shape[1], dtype=logits.dtype, device=logits.device) if bias is None else bias
    e = logits.exp()
    p = e / e.sum(1, keepdim=True)
    chosen = torch.argsort(-(p + bias).detach(), dim=1)[:, :k]
    at = torch.arange(len(logits), device=logits.device)[:, None]
    w = e[at, chosen]
    return chosen, w / w.sum(1, keepdim=True)


def permute(x, chosen, experts):
    n, k = chosen.shape
    source = torch.sort(chosen.flatten()).indices
    counts = (chosen.flatten()[:, None] == torch.arange(experts, device=x.device)).sum(0)
    return x.repeat_interleave(k, dim=0)[source], counts, source


def grouped(rows, counts, up, down):
    out, start = [], 0
    for e in range(len(up)):
        end = start + int(counts[e])
        h = torch.einsum("rc,hc->rh", rows[start:end], up[e])
        h = 0.5 * h * (1 + torch.erf(h / 2**0.5))
        out.append(torch.einsum("rh,ch->rc", h, down[e]))
        start = end
    return torch.vstack(out)


def grouped_kernel(rows, counts, up, down):
    ends = torch.stack([counts[: e + 1].sum() for e in range(len(up))]).int()
    h = F.grouped_mm(rows, up.transpose(-1, -2), offs=ends)
    half = (h / 2**0.5).float()
    h = (0.5 * h.float() * (1 + torch.erf(half))).to(rows.dtype)
    return F.grouped_mm(h, down.transpose(-1, -2), offs=ends)


def unpermute(rows, source, weights):
    n, k = weights.shape
    back = rows[source.argsort()]
    return torch.einsum("nkc,nk->nc", back.reshape(n, k, rows.shape[1]), weights)


def balance_loss(logits, chosen):
    p = logits.softmax(1)
    total = 0
    for e in range(logits.shape[1]):
        total = total + (chosen == e).sum() / (chosen.shape[0] * chosen.shape[1]) * p[:, e].mean()
    return total * logits.shape[1]


def nudge(bias, counts, rate):
    off = counts * len(counts) - counts.sum()
    bias.add_((off < 0).to(bias.dtype), alpha=rate).sub_((off > 0).to(bias.dtype), alpha=rate)


def within_capacity(chosen, experts, capacity):
    kept = torch.zeros(chosen.numel(), dtype=torch.bool, device=chosen.device)
    for e in range(experts):
        kept[torch.nonzero(chosen.flatten() == e)[:capacity, 0]] = True
    return kept.reshape(chosen.shape)
