# gradients that set out one rank ahead, chunk by chunk

import torch
import torch.distributed as dist


def shard(tokens, rank, ranks):
    rows, rest = divmod(tokens.size(1) - 1, ranks * 2)
    if rest > 0:
        raise ValueError(f"{rest} tokens too many")
    starts = torch.tensor([[rank], [2 * ranks - rank - 1]]) * rows
    positions = (starts + torch.arange(rows)).flatten()
    return tokens.index_select(1, positions), tokens.index_select(1, positions.add(1)), positions


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

    def __init__(self, group):
        self.n, self.r, self.group = dist.get_world_size(group), dist.get_rank(group), group

    def places(self, owner):
        return owner, 2 * self.n - 1 - owner

    def pairs(self, owner):
        for i, a in enumerate(self.places(self.r)):
            for j, b in enumerate(self.places(owner)):
                if b <= a:
                    yield i, j, a == b


def products(q, k, diagonal):  # q (B, h, g, c, D), k (B, h, c, D)
    s = torch.matmul(q.flatten(2, 3), k.transpose(2, 3)).view(*q.shape[:-1], -1) / q.size(-1) ** 0.5
    return s + torch.ones(s.shape[-2:]).triu(1).mul(-torch.inf).nan_to_num(0.0, 0.0, -torch.inf) if diagonal else s


class ByChunks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, group):
        walk = Walk(group)
        qs = q.reshape(q.size(0), k.size(1), -1, 2, q.size(2) // 2, q.size(3)).unbind(3)
        tops = [torch.full(x.shape[:-1], -torch.inf) for x in qs]
        sums = [torch.zeros(x.shape[:-1]) for x in qs]
        outs = [torch.zeros(x.shape) for x in qs]
        kv = torch.stack([k, v]).unflatten(3, (2, -1))
        for step in range(walk.n):
            wait = pass_on(kv, group) if step < walk.n - 1 else None
            for i, j, diagonal in walk.pairs((walk.r - step) % walk.n):
                s = products(qs[i], kv[0, :, :, j], diagonal)
                top = torch.maximum(tops[i], s.amax(-1))
                old, p = (tops[i] - top).exp(), (s - top[..., None]).exp()
                sums[i] = sums[i] * old + p.sum(-1)
                outs[i] = outs[i] * old[..., None] + torch.matmul(p.flatten(2, 3), kv[1, :, :, j]).view_as(outs[i])
                tops[i] = top
            kv = wait() if wait else kv
        outs = [o / z[..., None] for o, z in zip(outs, sums)]
        lses = [t + z.log() for t, z in zip(tops, sums)]
        ctx.group = group
        ctx.save_for_backward(q, k, v, *outs, *lses)
        return torch.stack(outs, 3).reshape(q.shape)

    @staticmethod
    def backward(ctx, grad):
        q, k, v, *rest = ctx.saved_tensors
        outs, lses, walk, group = rest[:2], rest[2:], Walk(ctx.group), ctx.group
        shape = (q.size(0), k.size(1), -1, 2, q.size(2) // 2, q.size(3))
        qs, gs = q.reshape(shape).unbind(3), grad.reshape(shape).unbind(3)
        deltas = [(g * o).sum(-1) for g, o in zip(gs, outs)]
        dqs = [torch.zeros(x.shape) for x in qs]
        kv = torch.stack([k, v]).unflatten(3, (2, -1))
        scale = q.size(3) ** -0.5

        def add(owner, kv, dkv):
            for i, j, diagonal in walk.pairs(owner):
                p = (products(qs[i], kv[0, :, :, j], diagonal) - lses[i][..., None]).exp()
                dp = torch.matmul(gs[i].flatten(2, 3), kv[1, :, :, j].transpose(2, 3)).view_as(p)
                ds = p * (dp - deltas[i][..., None]) * scale
                dqs[i] += torch.matmul(ds.flatten(2, 3), kv[0, :, :, j]).view_as(dqs[i])
                dkv[0, :, :, j] += torch.matmul(ds.flatten(2, 3).transpose(2, 3), qs[i].flatten(2, 3))
                dkv[1, :, :, j] += torch.matmul(p.flatten(2, 3).transpose(2, 3), gs[i].flatten(2, 3))

        mine, dkv = kv, torch.zeros_like(kv)
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
        return torch.stack(dqs, 3).reshape(q.shape), dk, dv, None


def ring_attention(q, k, v, group):
    return ByChunks.apply(q, k, v, group)


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
