# in place

import torch


def online_softmax(state, scores, values):
    top = scores.max(dim=-1).values
    if state is None:
        state = torch.full_like(top, -torch.inf), torch.zeros_like(top), top.new_zeros(*top.shape, values.shape[-1])
    m, l, o = state
    new = torch.maximum(m, top)
    safe = new.masked_fill(new == -torch.inf, 0)
    old, w = torch.exp(m - safe), torch.exp(scores - safe.unsqueeze(-1))
    return new, old * l + w.sum(-1), old.unsqueeze(-1) * o + torch.matmul(w, values)


def tiled_attention(q, k, v, tile):
    place = torch.arange(q.shape[2], device=q.device)
    out = []
    for rows, i in zip(q.split(tile, 2), place.split(tile)):
        state = None
        for keys, values, j in zip(k.split(tile, 2), v.split(tile, 2), place.split(tile)):
            if j[0] > i[-1]:
                break
            scores = torch.einsum("bhid,bhjd->bhij", rows, keys) / rows.shape[-1] ** 0.5
            state = online_softmax(state, torch.where(i[:, None] >= j, scores, -torch.inf), values)
        out.append(state[2] / state[1].unsqueeze(-1))
    return torch.cat(out, 2)


def in_place(logits, truth):
    counts, places = truth >= 0, torch.arange(len(truth), device=truth.device)
    logits -= logits.amax(1, keepdim=True)
    right = logits[places, truth.clamp(min=0)]
    logits.exp_()
    totals = logits.sum(1)
    logits /= totals[:, None]
    logits[places, truth.clamp(min=0)] -= 1
    logits *= counts[:, None]
    return ((totals.log() - right) * counts).sum()


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, labels, chunk, on):
        wants = [on and wanted for wanted in ctx.needs_input_grad[:2]]
        to_weight = torch.zeros(weight.shape, device=weight.device) if wants[1] else None
        shares, total = [], 0.0
        for rows, truth in zip(hidden.split(chunk), labels.split(chunk)):
            logits = torch.mm(rows, weight.T).to(torch.float32)
            total = total + in_place(logits, truth)
            if wants[0]:
                shares.append(torch.mm(logits.to(weight.dtype), weight).float())
            if wants[1]:
                to_weight += torch.mm(logits.to(rows.dtype).T, rows)
            del logits
        ctx.sums, ctx.kinds = (torch.cat(shares) if shares else None, to_weight), (hidden.dtype, weight.dtype)
        ctx.count = max(int((labels != -100).sum()), 1)
        return total / ctx.count

    @staticmethod
    def backward(ctx, upstream):
        pairs = zip(ctx.sums, ctx.kinds)
        return *[None if s is None else (s * (upstream / ctx.count)).to(kind) for s, kind in pairs], None, None, None


def chunked_cross_entropy(hidden, weight, labels, chunk):
    return InPlace.apply(hidden, weight, labels, chunk, torch.is_grad_enabled())


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
