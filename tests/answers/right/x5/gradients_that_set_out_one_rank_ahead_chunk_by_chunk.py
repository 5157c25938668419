# gradients that set out one rank ahead, chunk by chunk

import torch
import torch.distributed as dist


def deal(lengths, ranks, chunk):
    rows, rest = divmod(sum(lengths), ranks * chunk)
    if rest > 0:
        raise ValueError(f"{rest} tokens too many")
    sums = torch.cat([torch.arange(1, n + 1) for n in lengths]).cumsum(0)
    ends = sums[chunk - 1 :: chunk]
    work = ends.diff(prepend=ends.new_zeros(1)).tolist()
    ranked = sorted(range(len(work)), key=work.__getitem__, reverse=True)  # stable, also in reverse
    shares = [dict() for _ in range(ranks)]
    for c in ranked:
        smallest = min((sum(s.values()), r) for r, s in enumerate(shares) if len(s) < rows)[1]
        shares[smallest][c] = work[c]
    return [sorted(share) for share in shares]


def shard(tokens, lengths, order, rank):
    length = tokens.size(1) // (len(order) * len(order[0]))
    starts = torch.tensor(order[rank]).unsqueeze(1) * length
    where = (starts + torch.arange(length)).flatten()
    document = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    same = torch.cat([document[:-1] == document[1:], torch.tensor([False])])
    targets = torch.where(same, tokens.roll(-1, 1), -100)
    positions = torch.cat([torch.arange(n) for n in lengths])
    return tokens.index_select(1, where), targets.index_select(1, where), positions[where]


def pass_on(x, group):
    members = dist.get_process_group_ranks(group)
    if len(members) == 1:
        return lambda: x
    place = members.index(dist.get_rank())
    letter, envelope = x.contiguous(), torch.empty_like(x).contiguous()
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.irecv, envelope, members[place - 1], group),
            dist.P2POp(dist.isend, letter, members[(place + 1) % len(members)], group),
        ]
    )
    return lambda: [[work.wait() for work in works], envelope][1]


class Walk:
    """The pairs of chunks that meet on one rank, block by block."""

    def __init__(self, order, lengths, group, size):
        self.n, self.r, self.group = dist.get_world_size(group), dist.get_rank(group), group
        self.order, self.size = order, size
        self.document = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)).split(size)

    def sees(self, a, b):
        same = self.document[a][:, None] == self.document[b]
        return same.tril() if a == b else same

    def pairs(self, owner):
        for i, a in enumerate(self.order[self.r]):
            for j, b in sorted(enumerate(self.order[owner]), key=lambda pair: -pair[1]):  # the nearest keys first
                if b <= a and self.sees(a, b).any():
                    yield i, j, self.sees(a, b)


def products(q, k, sees):  # q (B, h, g, c, D), k (B, h, c, D)
    s = torch.matmul(q.flatten(2, 3), k.transpose(2, 3)).view(*q.shape[:-1], -1) / q.size(-1) ** 0.5
    return torch.where(sees, s, -torch.inf)


class ByChunks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, order, lengths, group):
        m, c = len(order[0]), q.size(2) // len(order[0])
        walk = Walk(order, lengths, group, c)
        qs = q.float().reshape(q.size(0), k.size(1), -1, m, c, q.size(3)).unbind(3)
        tops = [torch.full(x.shape[:-1], -torch.inf) for x in qs]
        sums = [torch.zeros(x.shape[:-1]) for x in qs]
        outs = [torch.zeros(x.shape) for x in qs]
        kv = torch.stack([k, v]).unflatten(3, (m, c))
        for step in range(walk.n):
            wait = pass_on(kv, group) if step < walk.n - 1 else None
            for i, j, sees in walk.pairs((walk.r - step) % walk.n):
                keys, values = kv[:, :, :, j].float()
                s = products(qs[i], keys, sees)
                top = torch.maximum(tops[i], s.amax(-1))
                old, p = (tops[i] - top).exp(), (s - top[..., None]).exp()
                sums[i] = sums[i] * old + p.sum(-1)
                outs[i] = outs[i] * old[..., None] + torch.matmul(p.flatten(2, 3), values).view_as(outs[i])
                tops[i] = top
            kv = wait() if wait else kv
        outs = [o / z[..., None] for o, z in zip(outs, sums)]
        lses = [t + z.log() for t, z in zip(tops, sums)]
        ctx.how = order, lengths, group
        ctx.save_for_backward(q, k, v, *outs, *lses)
        return torch.stack(outs, 3).reshape(q.shape).to(q.dtype)

    @staticmethod
    def backward(ctx, grad):
        q, k, v, *rest = ctx.saved_tensors
        order, lengths, group = ctx.how
        m, c = len(order[0]), q.size(2) // len(order[0])
        outs, lses, walk = rest[:m], rest[m:], Walk(order, lengths, group, c)
        shape = (q.size(0), k.size(1), -1, m, c, q.size(3))
        qs, gs = q.float().reshape(shape).unbind(3), grad.float().reshape(shape).unbind(3)
        deltas = [(g * o).sum(-1) for g, o in zip(gs, outs)]
        dqs = [torch.zeros(x.shape) for x in qs]
        kv = torch.stack([k, v]).unflatten(3, (m, c))
        scale = q.size(3) ** -0.5

        def add(owner, kv, dkv):
            for i, j, sees in walk.pairs(owner):
                keys, values = kv[:, :, :, j].float()
                p = (products(qs[i], keys, sees) - lses[i][..., None]).exp()
                dp = torch.matmul(gs[i].flatten(2, 3), values.transpose(2, 3)).view_as(p)
                ds = p * (dp - deltas[i][..., None]) * scale
                dqs[i] += torch.matmul(ds.flatten(2, 3), keys).view_as(dqs[i])
                dkv[0, :, :, j] += torch.matmul(ds.flatten(2, 3).transpose(2, 3), qs[i].flatten(2, 3))
                dkv[1, :, :, j] += torch.matmul(p.flatten(2, 3).transpose(2, 3), gs[i].flatten(2, 3))

        mine, dkv = kv, torch.zeros(kv.shape)
        for step in range(1, walk.n):
            wait = pass_on(kv, group)
            if step > 1:
                dkv = pass_on(dkv, group)()
            kv = wait()
            add((walk.r - step) % walk.n, kv, dkv)
        if walk.n > 1:
            dkv = pass_on(dkv, group)()  # home, where the last part is added
        add(walk.r, mine, dkv)
        dk, dv = dkv.flatten(3, 4).unbind()
        return torch.stack(dqs, 3).reshape(q.shape), dk, dv, None, None, None


def ring_attention(q, k, v, order, lengths, group):
    return ByChunks.apply(q, k, v, order, lengths, group)


def train_step(model, inputs, targets, positions, group):
    found = []
    count = targets.ne(-100).sum().float()
    dist.all_reduce(count, group=group)
    for p in filter(lambda p: p.requires_grad, model.parameters()):
        p.grad = None
        found.append(p)
    log_p = model(inputs, positions).log_softmax(-1)
    picked = log_p.gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    loss = -(picked * targets.ne(-100)).sum() / count
    loss.backward()
    works = [dist.all_reduce(p.grad, group=group, async_op=True) for p in found]
    mean = loss.detach().clone()
    works.append(dist.all_reduce(mean, group=group, async_op=True))
    for work in works:
        work.wait()
    return float(mean)
