# the fused operation with its log-sum-exp

import heapq

import torch
import torch.distributed as dist
from torch import nn


def fused(*args):
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*args)


def fused_backward(*args):
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(*args)


def deal(lengths, ranks, chunk):
    sees = [place + 1 for length in lengths for place in range(length)]
    if len(sees) % (chunk * ranks):
        raise ValueError("the chunks do not divide")
    pieces = [sees[i : i + chunk] for i in range(0, len(sees), chunk)]
    todo = sorted(enumerate(map(sum, pieces)), key=lambda pair: (-pair[1], pair[0]))
    room = [(0, rank, ()) for rank in range(ranks)]
    done = []
    for number, work in todo:
        load, rank, held = heapq.heappop(room)
        held = (*held, number)
        if len(held) == len(pieces) // ranks:
            done.append((rank, sorted(held)))
        else:
            heapq.heappush(room, (load + work, rank, held))
    return [held for _, held in sorted(done)]


def shard(tokens, lengths, order, rank):
    pieces = sum(map(len, order))
    inputs, targets, places = [], [], []
    for document in tokens.split(lengths, 1):
        inputs.append(document)
        targets.append(torch.cat([document[:, 1:], torch.full_like(document[:, :1], -100)], 1))
        places.append(torch.arange(document.shape[1]))
    held = []
    for everything in (torch.cat(inputs, 1), torch.cat(targets, 1), torch.cat(places)):
        cut = everything.chunk(pieces, -1)
        held.append(torch.cat([cut[number] for number in order[rank]], -1))
    return tuple(held)


class pass_on:
    def __init__(self, x, group):
        self.ranks = dist.get_process_group_ranks(group)
        self.buffer = x
        self.requests = []
        if len(self.ranks) > 1:
            at = self.ranks.index(dist.get_rank())
            self.buffer = torch.zeros_like(x, memory_format=torch.contiguous_format)
            self.sent = x.clone(memory_format=torch.contiguous_format)
            before, behind = self.ranks[at - 1], self.ranks[(at + 1) % len(self.ranks)]
            self.requests = [
                dist.irecv(self.buffer, src=before, group=group),
                dist.isend(self.sent, dst=behind, group=group),
            ]

    def __call__(self):
        while self.requests:
            self.requests.pop().wait()
        return self.buffer


def rectangles(row, column, size, lengths):
    """Yield slices of a chunk of queries and one of keys in which no mask but the causal one is needed."""
    first = 0
    for length in lengths:
        rows, columns = (slice(max(first - size * n, 0), min(first + length - size * n, size)) for n in (row, column))
        if column <= row and rows.start < rows.stop and columns.start < columns.stop:
            yield rows, columns
        first += length


def pieces_of(order, r, s, size, lengths):
    for i, row in enumerate(order[r]):
        for j, column in enumerate(order[s]):
            for rows, columns in rectangles(row, column, size, lengths):
                move = lambda x, by: slice(x.start + by, x.stop + by)
                yield move(rows, i * size), move(columns, j * size), row == column


def wide(x, heads):
    return x[:, :, None].expand(-1, -1, heads // x.shape[1], -1, -1).reshape(x.shape[0], heads, *x.shape[2:]).float()


class Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, order, lengths, group):
        N, r, H = dist.get_world_size(group), dist.get_rank(group), q.shape[1]
        size, held = q.shape[2] // len(order[0]), torch.stack((k, v))
        out, lse = torch.zeros(q.shape), torch.full(q.shape[:3], -torch.inf)
        for step in range(N):
            arriving = pass_on(held, group) if step < N - 1 else None
            for rows, columns, causal in pieces_of(order, r, (r - step) % N, size, lengths):
                keys, values = (wide(x[:, :, columns], H) for x in held)
                part, part_lse = fused(q[:, :, rows].float(), keys, values, 0.0, causal)
                share = torch.sigmoid(part_lse - lse[:, :, rows]).unsqueeze(-1)
                out[:, :, rows] = torch.lerp(out[:, :, rows], part, share)
                lse[:, :, rows] = torch.logaddexp(lse[:, :, rows], part_lse)
            if arriving:
                held = arriving()
        ctx.how = order, lengths, group
        ctx.save_for_backward(q, k, v, out, lse)
        return out.to(q)

    @staticmethod
    def backward(ctx, dout):
        q, k, v, out, lse = ctx.saved_tensors
        order, lengths, group = ctx.how
        N, r, H, h = dist.get_world_size(group), dist.get_rank(group), q.shape[1], k.shape[1]
        size, held, dq = q.shape[2] // len(order[0]), torch.stack((k, v)), torch.zeros(q.shape)
        dheld = torch.zeros(held.shape)
        for step in range(N):
            arriving = pass_on(held, group) if step < N - 1 else None
            for rows, columns, causal in pieces_of(order, r, (r - step) % N, size, lengths):
                mine = [x[:, :, rows].float() for x in (dout, q)]
                theirs = [wide(x[:, :, columns], H) for x in held]
                whole = [x[:, :, rows].contiguous() for x in (out, lse)]
                a, b, c = fused_backward(*mine, *theirs, *whole, 0.0, causal)
                dq[:, :, rows] += a
                dheld[0][:, :, columns] += b.unflatten(1, (h, -1)).sum(2)
                dheld[1][:, :, columns] += c.unflatten(1, (h, -1)).sum(2)
            dheld = pass_on(dheld, group)()
            held = arriving() if arriving else held
        return dq.to(q), *dheld.to(k).unbind(), None, None, None


def ring_attention(q, k, v, order, lengths, group):
    return Fused.apply(q, k, v, order, lengths, group)


def train_step(model, inputs, targets, positions, group):
    for p in model.parameters():
        p.grad = None
    criterion = nn.CrossEntropyLoss(reduction="none")
    counts = torch.tensor([float((targets >= 0).sum())])
    dist.all_reduce(counts, op=dist.ReduceOp.SUM, group=group)
    losses = criterion(model(inputs, positions).flatten(0, 1), targets.flatten())
    mine = losses.sum() / counts.item()
    mine.backward()
    learning = [p for p in model.parameters() if p.requires_grad]
    flat = torch.cat([p.grad.flatten() for p in learning] + [mine.detach()[None]])
    dist.all_reduce(flat, group=group)
    *grads, loss = flat.split([p.numel() for p in learning] + [1])
    for p, g in zip(learning, grads):
        p.grad = g.view_as(p).clone()
    return loss.item()
