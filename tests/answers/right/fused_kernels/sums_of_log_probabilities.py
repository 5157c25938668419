# sums of log-probabilities

import torch
from torch.autograd.function import once_differentiable


class Running:
    def __init__(self, state):
        self.largest, self.total, self.weighted = state

    def merged(self, other):
        largest = torch.maximum(self.largest, other.largest)
        sums = [0.0, 0.0]
        for part in (self, other):
            factor = torch.where(part.largest == -torch.inf, 0.0, torch.exp(part.largest - largest))
            sums[0] = sums[0] + factor * part.total
            sums[1] = sums[1] + factor[..., None] * part.weighted
        return largest, *sums


def online_softmax(state, scores, values):
    largest = scores.amax(-1)
    weights = torch.where(scores == -torch.inf, 0.0, torch.exp(scores - largest[..., None]))
    mine = Running((largest, weights.sum(-1), weights @ values))
    return (mine.largest, mine.total, mine.weighted) if state is None else Running(state).merged(mine)


def tiled_attention(q, k, v, tile):
    out = torch.zeros_like(q)
    for i in range(0, q.shape[2], tile):
        state, end = None, min(i + tile, q.shape[2])
        for j in reversed(range(0, end, tile)):
            scores = q[:, :, i:end] @ k[:, :, j : j + tile].transpose(2, 3) / q.shape[3] ** 0.5
            rows = torch.arange(i, end, device=q.device)[:, None]
            columns = torch.arange(j, j + scores.shape[-1], device=q.device)
            state = online_softmax(state, scores.masked_fill(columns > rows, -torch.inf), v[:, :, j : j + tile])
        out[:, :, i:end] = state[2] / state[1][..., None]
    return out


class Chunk:
    def __init__(self, rows, truth, weight):
        self.rows, self.truth, self.weight, self.counts = rows, truth.clamp(min=0)[:, None], weight, truth >= 0
        self.log_probabilities = torch.log_softmax(torch.matmul(rows, weight.T), 1, dtype=torch.float32)

    def loss(self):
        return -self.log_probabilities.gather(1, self.truth)[self.counts].sum()

    def gradient(self):
        gradient = self.log_probabilities.exp()
        gradient.scatter_add_(1, self.truth, torch.full_like(gradient[:, :1], -1.0))
        return gradient.mul_(self.counts[:, None]).to(self.rows.dtype)

    def sums(self, wanted):
        gradient = self.gradient() if any(wanted) else None
        to_hidden = gradient @ self.weight if wanted[0] else None
        return to_hidden, (gradient.T @ self.rows).float() if wanted[1] else None


class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, labels, chunk, wanted):
        sums, total = [None, None], 0.0
        if wanted[0]:
            sums[0] = torch.zeros(hidden.shape, device=hidden.device)
        for start in range(0, len(hidden), chunk):
            part = Chunk(hidden[start : start + chunk], labels[start : start + chunk], weight)
            total = total + part.loss()
            to_hidden, to_weight = part.sums(wanted)
            del part
            if wanted[0]:
                sums[0][start : start + chunk] = to_hidden
            if wanted[1]:
                sums[1] = to_weight if sums[1] is None else sums[1] + to_weight
        ctx.sums, ctx.count = sums, (labels != -100).sum().clamp(min=1)
        ctx.types = hidden.dtype, weight.dtype
        return total / ctx.count

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream):
        scale = upstream / ctx.count
        gradients = [None if s is None else (scale * s).to(kind) for s, kind in zip(ctx.sums, ctx.types)]
        return *gradients, None, None, None


def chunked_cross_entropy(hidden, weight, labels, chunk):
    wanted = [torch.is_grad_enabled() and t.requires_grad for t in (hidden, weight)]
    return Loss.apply(hidden, weight, labels, chunk, wanted)


try:
    import triton.language as tl
except ImportError:
    pass


def merge_tile(m, l, o, s, v):
    here = tl.max(s, 1)  # the tile on its own, then both joined
    w = tl.exp(s - here[:, None])
    own_l, own_o = tl.sum(w, 1), tl.sum(w[:, :, None] * v[None, :, :], 1)
    new = tl.where(here > m, here, m)
    a, b = tl.exp(m - new), tl.exp(here - new)
    return new, a * l + b * own_l, a[:, None] * o + b[:, None] * own_o
