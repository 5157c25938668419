# gradients from torch.autograd.grad

import torch
import torch.nn.functional as F


def online_softmax(state, scores, values):
    if state is not None:  # what was seen is one more column, whose value is its weighted sum
        largest, total, weighted = state
        seen = torch.where(total > 0, largest + total.log(), -torch.inf)
    largest = scores.amax(-1) if state is None else torch.maximum(scores.amax(-1), largest)
    base = largest.clamp(min=torch.finfo(largest.dtype).min)
    weights = (scores - base[..., None]).exp()
    total, sums = weights.sum(-1), weights @ values
    if state is not None:
        share = (seen - base).exp()
        sums = sums + share[..., None] * weighted / state[1].clamp(min=1e-30)[..., None]
        total = total + share
    return largest, total, sums


def tiled_attention(q, k, v, tile):
    B, H, T, d = q.shape
    heads = [t.reshape(B * H, T, d) for t in (q, k, v)]
    out = torch.empty(B * H, T, d, device=q.device)
    for top in range(0, T, tile):
        state = None
        for left in range(0, top + 1, tile):
            rows, keys = heads[0][:, top : top + tile], heads[1][:, left : left + tile]
            scores = torch.bmm(rows, keys.transpose(1, 2)) * d**-0.5
            if left == top:
                n = scores.shape[1]
                scores = scores + torch.full((n, n), -torch.inf, device=q.device).triu(1)
            state = online_softmax(state, scores, heads[2][:, left : left + tile])
        out[:, top : top + tile] = state[2] / state[1][..., None]
    return out.view(B, H, T, d)


def chunked_cross_entropy(hidden, weight, labels, chunk):
    count = max(1, int(labels.ne(-100).sum()))
    if not torch.is_grad_enabled():
        parts = zip(hidden.split(chunk), labels.split(chunk))
        losses = (F.cross_entropy(F.linear(rows, weight).float(), truth, reduction="sum") for rows, truth in parts)
        return sum(losses) / count

    class Loss(torch.autograd.Function):
        @staticmethod
        def forward(ctx, hidden, weight):
            total, ctx.types = 0.0, (hidden.dtype, weight.dtype)
            to_hidden = torch.zeros(hidden.shape, device=hidden.device)
            to_weight = torch.zeros(weight.shape, device=hidden.device)
            wants = ctx.needs_input_grad
            for start in range(0, hidden.shape[0], chunk):
                rows = hidden[start : start + chunk].detach().float().requires_grad_()
                table = weight.detach().float().requires_grad_(wants[1])
                with torch.enable_grad():
                    loss = F.cross_entropy(F.linear(rows, table), labels[start : start + chunk], reduction="sum")
                grads = torch.autograd.grad(loss, [rows, table] if wants[1] else [rows])
                to_hidden[start : start + chunk] = grads[0]
                if wants[1]:
                    to_weight += grads[1]
                total += loss.detach()
            ctx.grads = to_hidden, to_weight
            return total / count

        @staticmethod
        def backward(ctx, upstream):
            return tuple(
                (grad * upstream / count).to(kind) if wanted else None
                for grad, kind, wanted in zip(ctx.grads, ctx.types, ctx.needs_input_grad)
            )

    return Loss.apply(hidden, weight)


try:
    import triton.language as tl
except ImportError:
    pass


def merge_tile(largest, total, weighted, scores, values):
    top = tl.maximum(tl.max(scores, axis=1), largest)
    shares = tl.exp(scores - tl.expand_dims(top, 1))
    old = tl.exp(largest - top)
    weighted = tl.dot(shares, values, weighted * old[:, None], input_precision="ieee")
    return top, tl.sum(shares, axis=1) + total * old, weighted
