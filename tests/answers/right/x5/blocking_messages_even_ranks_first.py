# blocking messages, even ranks first

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.autograd.function import once_differentiable


def deal(lengths, ranks, chunk):
    T = sum(lengths)
    if T % chunk or (T // chunk) % ranks:
        raise ValueError("no even parts")
    work = torch.zeros(T // chunk, dtype=torch.long)
    place = torch.cat([torch.arange(n) for n in lengths])
    work.index_add_(0, torch.arange(T) // chunk, place + 1)
    order, load = [[] for _ in range(ranks)], [0] * ranks
    for c in torch.argsort(-work, stable=True).tolist():
        free = [load[r] if len(order[r]) < T // chunk // ranks else float("inf") for r in range(ranks)]
        r = free.index(min(free))
        order[r].append(c)
        load[r] += work[c].item()
    return list(map(sorted, order))


def shard(tokens, lengths, order, rank):
    B, T = tokens.shape
    size = T // sum(map(len, order))
    where = torch.cat([torch.arange(c * size, c * size + size) for c in order[rank]])
    targets, positions, first = torch.full((B, T), -100), torch.zeros(T, dtype=torch.long), 0
    for n in lengths:
        targets[:, first : first + n - 1] = tokens[:, first + 1 : first + n]
        positions[first : first + n] = torch.arange(n)
        first += n
    return tokens[:, where], targets[:, where], positions[where]


def pass_on(x, group):
    size, number = dist.get_world_size(group), dist.get_rank(group)
    if size == 1:
        return lambda: x
    sent, got = x.clone().contiguous(), x.new_empty(x.shape)
    ops = [
        dist.isend(sent, dist.get_global_rank(group, (number + 1) % size), group=group),
        dist.irecv(got, dist.get_global_rank(group, (number - 1) % size), group=group),
    ]

    def wait():
        nonlocal sent
        for op in ops:
            op.wait()
        sent = None
        return got

    return wait


def swap(x, group):
    size, number = dist.get_world_size(group), dist.get_rank(group)
    if size == 1:
        return x
    x, got = x.contiguous(), x.new_empty(x.shape)

    def send():
        dist.send(x, group=group, group_dst=(number + 1) % size)

    def receive():
        dist.recv(got, group=group, group_src=(number - 1) % size)

    for act in (send, receive) if number % 2 == 0 else (receive, send):
        act()
    return got


def bias_of(row, column, chunk, lengths):
    """What is added to scores: 0 where a query sees a key, else minus infinity; None if it is that everywhere."""
    bias, first = torch.full((chunk, chunk), float("-inf")), 0
    for n in lengths:
        a, b = (x * chunk for x in (row, column))
        i = torch.arange(max(first, a), max(min(first + n, a + chunk), max(first, a)))
        j = torch.arange(max(first, b), max(min(first + n, b + chunk), max(first, b)))
        part = torch.where(i[:, None] >= j, 0.0, float("-inf"))
        if part.numel():
            bias[i[0] - a : i[-1] - a + 1, j[0] - b : j[-1] - b + 1] = part
        first += n
    return bias if bias.max() == 0 else None


def meeting(order, me, who, chunk, lengths):
    for i, row in enumerate(order[me]):
        for j, column in enumerate(order[who]):
            bias = bias_of(row, column, chunk, lengths)
            if bias is not None:
                yield slice(i * chunk, i * chunk + chunk), slice(j * chunk, j * chunk + chunk), bias


class Spread(torch.autograd.Function):
    """Heads are flattened into the batch; each of them has a row of its own in every product."""

    @staticmethod
    def forward(ctx, q, k, v, order, lengths, group):
        B, H, t, D = q.shape
        h, size, me = k.shape[1], dist.get_world_size(group), dist.get_rank(group)
        chunk = t // len(order[me])
        flat = q.reshape(B * H, t, D)
        kv = torch.stack([k.reshape(B * h, t, D), v.reshape(B * h, t, D)])
        O, L = torch.zeros(flat.shape), torch.full(flat.shape[:2], -1e30)
        for hop in range(size):
            for part, keep, bias in meeting(order, me, (me + size - hop) % size, chunk, lengths):
                K, V = kv[:, :, keep].float().repeat_interleave(H // h, 1)
                s = torch.baddbmm(bias.expand(B * H, -1, -1), flat[:, part].float(), K.mT, alpha=D**-0.5)
                m = torch.logaddexp(s.logsumexp(2), L[:, part])
                O[:, part] = torch.baddbmm(O[:, part] * (L[:, part] - m).exp()[..., None], (s - m[..., None]).exp(), V)
                L[:, part] = m
            if hop < size - 1:
                kv = swap(kv, group)
        ctx.geometry = (B, H, h, t, D, size, me, chunk, order, lengths, group)
        ctx.save_for_backward(flat, k, v, O, L)
        return O.view(B, H, t, D).bfloat16()

    @staticmethod
    @once_differentiable
    def backward(ctx, dO):
        flat, k, v, O, L = ctx.saved_tensors
        B, H, h, t, D, size, me, chunk, order, lengths, group = ctx.geometry
        dO = dO.reshape(B * H, t, D).float()
        correction = torch.einsum("ntd,ntd->nt", dO, O).unsqueeze(2)
        kv = torch.stack([k.reshape(B * h, t, D), v.reshape(B * h, t, D)])
        dkv, dQ = torch.zeros(kv.shape), torch.zeros(flat.shape)
        for hop in range(size):
            for part, keep, bias in meeting(order, me, (me + size - hop) % size, chunk, lengths):
                K, V = kv[:, :, keep].float().repeat_interleave(H // h, 1)
                Q, G = flat[:, part].float(), dO[:, part]
                P = (torch.bmm(Q, K.transpose(1, 2)) * D**-0.5 + bias - L[:, part].unsqueeze(2)).exp()
                dS = P * (torch.bmm(G, V.transpose(1, 2)) - correction[:, part]) * D**-0.5
                dQ[:, part] += torch.bmm(dS, K)
                dK, dV = torch.bmm(dS.transpose(1, 2), Q), torch.bmm(P.transpose(1, 2), G)
                dkv[0, :, keep] += dK.unflatten(0, (B * h, -1)).sum(1)
                dkv[1, :, keep] += dV.unflatten(0, (B * h, -1)).sum(1)
            dkv = swap(dkv, group)
            if hop < size - 1:
                kv = swap(kv, group)
        dK, dV = dkv.bfloat16().view(2, B, h, t, D)
        return dQ.bfloat16().view(B, H, t, D), dK, dV, None, None, None


def ring_attention(q, k, v, order, lengths, group):
    return Spread.apply(q, k, v, order, lengths, group)


def train_step(model, inputs, targets, positions, group):
    learned = {name: p for name, p in model.named_parameters() if p.requires_grad}
    size = dist.get_world_size(group)
    mine = (targets != -100).sum()
    everyone = [torch.zeros_like(mine) for _ in range(size)]
    dist.all_gather(everyone, mine, group=group)
    total = torch.stack(everyone).sum().item()
    out = model(inputs, positions)
    mean = F.cross_entropy(out.view(-1, out.shape[-1]), targets.view(-1)) if mine else out.sum() * 0.0
    share = mean * mine / total
    model.zero_grad(set_to_none=True)
    share.backward()
    for p in learned.values():
        dist.all_reduce(p.grad, dist.ReduceOp.SUM, group)
    answer = share.detach().clone()
    dist.all_reduce(answer, dist.ReduceOp.SUM, group)
    return answer.tolist()
