# the reference with other words

import torch
import torch.distributed as dist
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


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(rows, send, receive, group):
        y = torch.empty(sum(receive), rows.shape[1], dtype=rows.dtype, device=rows.device)
        work = dist.all_to_all_single(y, rows.clone().contiguous(), receive, send, group=group, async_op=True)
        work.wait()
        return y

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.send, ctx.receive, ctx.group = inputs

    @staticmethod
    def backward(ctx, g):
        return Exchange.forward(g, ctx.receive, ctx.send, ctx.group), None, None, None


def expert_parallel(x, chosen, weights, up, down, group):
    n = dist.get_world_size(group)
    e = up.shape[0]
    rows, counts, source = permute(x, chosen, n * e)
    theirs = torch.zeros_like(counts)
    dist.all_to_all_single(theirs, counts, group=group)
    send = counts.reshape(n, e).sum(-1).tolist()
    receive = theirs.reshape(n, e).sum(-1).tolist()
    got = Exchange.apply(rows, send, receive, group)
    which = torch.repeat_interleave(torch.arange(n * e) % e, theirs)
    again, per_expert, places = permute(got, which[:, None], e)
    y = grouped(again, per_expert, up, down)
    y = unpermute(y, places, torch.ones(len(got), 1, dtype=x.dtype))
    return unpermute(Exchange.apply(y, receive, send, group), source, weights)


def average_gradients(shared, experts, mesh):
    n, copies = mesh.size(), mesh.get_group("replica")
    for p in shared:
        p.grad.div_(n)
        dist.all_reduce(p.grad)
    for p in experts:
        p.grad.div_(n)
        dist.all_reduce(p.grad, group=copies)
