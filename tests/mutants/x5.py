"""Wrong and right answers for X5."""

from . import Mutant, one

SHARD, PASS, RING, TRAIN = "x5.shard", "x5.pass_on", "x5.ring", "x5.train"
CHUNKS, PASSES = "each_rank_holds_two_chunks", "passes_on_without_waiting"
OUTPUT, DQ, DKV = "output_of_one_process", "gradient_of_queries", "gradients_of_keys_come_home"
MEMORY, BLOCKS, WORK = "memory_does_not_grow_with_ranks", "blocks_go_round_the_ring", "hidden_blocks_are_skipped"
LOSS, GRADIENTS = "loss_is_of_the_whole_sequence", "gradients_are_of_the_whole_sequence"

# Words of the reference that mutants replace.
POSITIONS = "torch.cat([chunks[rank], chunks[2 * ranks - 1 - rank]])"
ALONE = "    if ranks == 1:\n        return lambda: x\n"
COMING = "torch.empty_like(x, memory_format=torch.contiguous_format)"
UNDER_WAY = "    under_way = dist.batch_isend_irecv([send, receive])\n"
BEFORE = "        return slice(None), slice(half)  # their earlier chunk lies before both of mine, their later one behind\n"
BEHIND = "        return slice(half, None), slice(None)  # my later chunk lies behind both of theirs, my earlier one before\n"
SCALE = ' / q.shape[-1] ** 0.5\n        later'
START = "        block, out, lse = torch.stack([k, v]), torch.zeros_like(q), torch.full_like(q[..., 0], float(\"-inf\"))\n"
SOURCE = "            source = (rank - step) % ranks\n            wait = pass_on(block, group)"
FORWARD_PASS = "wait = pass_on(block, group) if step < ranks - 1 else None"
NEW = "            new = torch.logaddexp(lse[..., mine], scores.logsumexp(-1))\n"
RESCALE = "            out[..., mine, :] *= (lse[..., mine] - new).exp()[..., None]\n"
PROBABILITIES = "            p = (scores - new[..., None]).exp()\n"
VALUES = 'torch.einsum("bhgij,bhjd->bhgid", p, block[1][..., theirs, :])'
KEEP = "            block = wait() if wait else block\n        ctx.group = group\n"
SAVE = "        ctx.save_for_backward(q, k, v, out, lse)\n"
AGAIN = "            p = (RingAttention.scores(q_, k_, source == rank) - lse[..., mine, None]).exp()\n"
DELTA = ".sub_(delta[..., mine, :])"
HOME = "            d_block = pass_on(d_block, ctx.group)()  # travels with its block; the last step brings it home\n"
BACKWARD_PASS = "wait = pass_on(block, ctx.group) if step < ranks - 1 else None"
BACKWARD_SOURCE = "            source = (rank - step) % ranks\n            wait = pass_on(block, ctx.group)"
BACK = "return dq.flatten(1, 2), d_block[0], d_block[1], None"
APPLY = "    return RingAttention.apply(q, k, v, group)\n"
CLEAR = "    model.zero_grad()\n"
COUNT = "    count = (targets != -100).sum()\n    dist.all_reduce(count, group=group)\n"
MEAN = 'F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / count'
REDUCE = "            dist.all_reduce(p.grad, group=group)\n"
JOIN = "    dist.all_reduce(loss, group=group)\n"

# Bodies for `ring_attention` that hold too much, or send too much.
GRAPH = '''
    class Pass(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return pass_on(x, group)()

        @staticmethod
        def backward(ctx, grad):
            rank, ranks = dist.get_rank(group), dist.get_world_size(group)
            came = torch.empty_like(grad, memory_format=torch.contiguous_format)
            send = dist.P2POp(dist.isend, grad.contiguous(), group=group, group_peer=(rank - 1) % ranks)
            receive = dist.P2POp(dist.irecv, came, group=group, group_peer=(rank + 1) % ranks)
            for work in dist.batch_isend_irecv([send, receive]):
                work.wait()
            return came

    rank, ranks, half = dist.get_rank(group), dist.get_world_size(group), q.shape[2] // 2
    q, block = q.unflatten(1, (k.shape[1], -1)), torch.stack([k, v])
    outs, lses = [], []
    for step in range(ranks):
        source = (rank - step) % ranks
        mine, theirs = meets(source, rank, half)
        scores = RingAttention.scores(q[..., mine, :], block[0][..., theirs, :], source == rank)
        out = torch.einsum("bhgij,bhjd->bhgid", scores.softmax(-1), block[1][..., theirs, :])
        short = q.shape[-2] - out.shape[-2]  # rows before `mine`, which see nothing
        outs.append(F.pad(out, (0, 0, short, 0)))
        lses.append(F.pad(scores.logsumexp(-1), (short, 0), value=float("-inf")))
        block = Pass.apply(block) if step < ranks - 1 else block
    weights = torch.stack(lses).softmax(0)
    return (weights[..., None] * torch.stack(outs)).sum(0).flatten(1, 2)
'''
GATHERED = '''
    class Gather(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
            dist.all_gather(parts, x, group=group)
            return torch.stack(parts)

        @staticmethod
        def backward(ctx, grad):
            grad = grad.contiguous()
            dist.all_reduce(grad, group=group)
            return grad[dist.get_rank(group)]

    rank, ranks, half = dist.get_rank(group), dist.get_world_size(group), q.shape[2] // 2
    where = [torch.cat([torch.arange(half) + half * i for i in (r, 2 * ranks - 1 - r)]) for r in range(ranks)]
    keys, values = (torch.cat(Gather.apply(x.contiguous()).unbind(), 2) for x in (k, v))
    mask = where[rank][:, None] >= torch.cat(where)
    return F.scaled_dot_product_attention(q, keys, values, mask, enable_gqa=True)
'''
STRAIGHT_HOME = """            other = torch.empty_like(d_block)
            if step:
                home = dist.P2POp(dist.isend, d_block, group=ctx.group, group_peer=source)
                come = dist.P2POp(dist.irecv, other, group=ctx.group, group_peer=(rank + step) % ranks)
                for work in dist.batch_isend_irecv([home, come]):
                    work.wait()
            total = d_block if not step else total + other
            d_block = total if step == ranks - 1 else torch.zeros_like(block)
"""
BROADCAST = """            wait = None
            send = torch.stack([k, v])
            following = (rank - step - 1) % ranks
            for root in range(ranks):
                piece = send.clone() if root == rank else torch.empty_like(send)
                dist.broadcast(piece, group=group, group_src=root)
                if root == following:
                    wait = lambda piece=piece: piece
"""
MASKED = """            mine, theirs = slice(None), slice(None)
            scores = RingAttention.scores(q, block[0], source == rank)
            half = q.shape[-2] // 2
            first, second = (torch.arange(2 * half) + (half * r, (2 * ranks - 2 - r) * half)[0] for r in (rank, source))
            late = torch.arange(2 * half) >= half
            first, second = (torch.where(late, (2 * ranks - 1 - r) * half, r * half) + torch.arange(2 * half) % half for r in (rank, source))
            scores = scores.masked_fill(first[:, None] < second, float("-inf"))
"""
FORWARD_MEETS = """            mine, theirs = meets(source, rank, q.shape[-2] // 2)
            scores = RingAttention.scores(q[..., mine, :], block[0][..., theirs, :], source == rank)
"""


def both(name, rejected_by, body, raises=""):
    """A mutant with another `ring_attention`."""
    return one(name, RING, rejected_by, APPLY, body, raises)


MUTANTS = [
    # the part of a rank
    one("two neighbouring chunks", SHARD, CHUNKS, POSITIONS, "torch.cat([chunks[2 * rank], chunks[2 * rank + 1]])"),
    one("late chunks in the order of the early ones", SHARD, CHUNKS, POSITIONS, "torch.cat([chunks[rank], chunks[ranks + rank]])"),
    one("the later chunk first", SHARD, CHUNKS, POSITIONS, "torch.cat([chunks[2 * ranks - 1 - rank], chunks[rank]])"),
    one("another order on one rank", SHARD, CHUNKS, POSITIONS, POSITIONS + "\n    positions = positions.flip(0) if rank == 1 else positions"),
    one("every second token", SHARD, CHUNKS, POSITIONS, "chunks.flatten()[rank::ranks]"),
    one("targets end with the part", SHARD, CHUNKS, "tokens[:, positions + 1]", "tokens[:, positions].roll(-1, 1)"),
    one("targets of each chunk end with it", SHARD, CHUNKS, "tokens[:, positions + 1]", "tokens[:, positions].unflatten(1, (2, -1)).roll(-1, 2).flatten(1)"),
    one("targets are the inputs", SHARD, CHUNKS, "tokens[:, positions + 1]", "tokens[:, positions]"),
    one("positions count from nought on each rank", SHARD, CHUNKS, "positions + 1], positions", "positions + 1], torch.arange(len(positions))"),
    one("positions for each row", SHARD, CHUNKS, "positions + 1], positions", "positions + 1], positions.expand(len(tokens), -1)"),
    one("positions of another dtype", SHARD, CHUNKS, "positions + 1], positions", "positions + 1], positions.int()"),
    one("the rest is thrown away", SHARD, CHUNKS, "    if left:\n", "    if False:\n"),
    one("looks at ranks, not at chunks", SHARD, CHUNKS, "    if left:\n", "    if (tokens.shape[1] - 1) % ranks:\n"),
    one("another kind of error", SHARD, CHUNKS, "raise ValueError(", "raise RuntimeError("),
    # the message
    one("to the rank before", PASS, PASSES, "group_peer=(rank + 1) % ranks)\n    receive = dist.P2POp(dist.irecv, coming, group=group, group_peer=(rank - 1) % ranks)",
        "group_peer=(rank - 1) % ranks)\n    receive = dist.P2POp(dist.irecv, coming, group=group, group_peer=(rank + 1) % ranks)"),
    one("waits before it returns", PASS, PASSES, UNDER_WAY, UNDER_WAY + "    for work in under_way:\n        work.wait()\n    under_way = []\n"),
    one("gathers from all", PASS, PASSES, UNDER_WAY, "    parts = [torch.empty_like(coming) for _ in range(ranks)]\n    dist.all_gather(parts, x.contiguous(), group=group)\n    coming, under_way = parts[rank - 1], []\n"),
    one("does not wait", PASS, PASSES, "        for work in under_way:\n            work.wait()\n        return coming", "        return coming"),
    one("waits for the sending alone", PASS, PASSES, "for work in under_way:", "for work in under_way[:1]:"),
    one("what comes takes the place of what goes", PASS, PASSES, COMING, "x if x.is_contiguous() else torch.empty_like(x).contiguous()"),
    one("one buffer for all", PASS, PASSES, COMING, "pass_on.__dict__.setdefault((x.shape, x.dtype), torch.empty_like(x).contiguous())"),
    one("a tensor comes back", PASS, PASSES, "    return wait\n", "    return wait()\n"),
    one("nothing comes back from waiting", PASS, PASSES, "        return coming\n", ""),
    one("numbers of the world", PASS, PASSES, "group_peer=(rank + 1) % ranks)\n    receive = dist.P2POp(dist.irecv, coming, group=group, group_peer=(rank - 1) % ranks)",
        "peer=(rank + 1) % ranks)\n    receive = dist.P2POp(dist.irecv, coming, group=group, peer=(rank - 1) % ranks)", "rank"),
    one("everybody sends before anybody receives", PASS, PASSES, UNDER_WAY, "    dist.send(x.contiguous(), group=group, group_dst=(rank + 1) % ranks)\n    dist.recv(coming, group=group, group_src=(rank - 1) % ranks)\n    under_way = []\n", "have not come back within"),
    one("a view is sent as it is", PASS, PASSES, "dist.isend, x.contiguous()", "dist.isend, x", "contiguous"),
    one("a message to oneself", PASS, PASSES, ALONE, "", "rank"),
    one("room for FP32", PASS, PASSES, COMING, "torch.empty(x.shape)", "rank"),
    # the output
    one("scale missing", RING, OUTPUT, SCALE, SCALE.replace(" / q.shape[-1] ** 0.5", "")),
    one("scale of all heads", RING, OUTPUT, SCALE, SCALE.replace("q.shape[-1] ** 0.5", "(q.shape[-1] * q.shape[1]) ** 0.5")),
    one("no mask", RING, OUTPUT, 'float("-inf")) if mine else scores', 'float("-inf")) if mine is None else scores'),
    one("sees one ahead", RING, OUTPUT, ".triu(1)", ".triu(2)"),
    one("does not see itself", RING, OUTPUT, ".triu(1)", ".triu(0)"),
    one("every block is masked as one's own", RING, OUTPUT, "if mine else scores", "if True else scores"),
    one("order left out between ranks", RING, OUTPUT, BEFORE, BEFORE.replace("slice(half)", "slice(None)")),
    one("the wrong half of their keys", RING, OUTPUT, BEFORE, BEFORE.replace("slice(half)", "slice(half, None)")),
    one("the wrong half of my queries", RING, OUTPUT, BEHIND, BEHIND.replace("slice(half, None)", "slice(half)")),
    one("mask off by one block", RING, OUTPUT, "if source < rank:", "if source <= rank:"),
    one("lower and higher ranks mixed up", RING, OUTPUT, "    if source < rank:\n", "    source, rank = rank, source\n    if source < rank:\n"),
    one("parts in a row instead of zigzag", RING, OUTPUT, BEFORE, "        return slice(None), slice(None)\n"),
    one("zigzag order wrong on one rank", RING, OUTPUT, "    if source > rank:\n        return slice(half, None)", "    if source > rank:\n        return slice(half) if rank == 1 else slice(half, None)"),
    one("holds another rank's block than it thinks", RING, OUTPUT, SOURCE, SOURCE.replace("(rank - step)", "(rank + step)")),
    one("number in the world", RING, OUTPUT, 'rank, ranks = dist.get_rank(group), dist.get_world_size(group)\n        q =', 'rank, ranks = dist.get_rank() % dist.get_world_size(group), dist.get_world_size(group)\n        q ='),
    one("missing rescale in merge", RING, OUTPUT, RESCALE, ""),
    one("rescaled the wrong way", RING, OUTPUT, RESCALE, RESCALE.replace("lse[..., mine] - new", "new - lse[..., mine]").replace(".exp()", ".clamp(max=9).exp()")),
    one("log-sum-exps by their maximum", RING, OUTPUT, NEW, NEW.replace("logaddexp", "maximum")),
    one("log-sum-exps added", RING, OUTPUT, NEW, "            new = (lse[..., mine].nan_to_num(neginf=0.0) + scores.logsumexp(-1))\n"),
    one("log-sum-exp of the last block", RING, OUTPUT, NEW, "            new = scores.logsumexp(-1)\n"),
    one("log-sum-exp not kept", RING, OUTPUT, "            lse[..., mine] = new\n", "            lse[..., mine] = new if not step else lse[..., mine]\n"),
    one("exponentials overflow", RING, OUTPUT, NEW, "            new = (lse[..., mine].exp() + scores.exp().sum(-1)).log()\n"),
    one("blocks averaged", RING, OUTPUT, PROBABILITIES, "            p = scores.softmax(-1) / ranks\n"),
    one("last block left out", RING, OUTPUT, "        for step in range(ranks):\n" + SOURCE, "        for step in range(max(1, ranks - 1)):\n" + SOURCE),
    one("one's own values for all keys", RING, OUTPUT, VALUES, VALUES.replace("block[1]", "v")),
    one("keys of one block, values of the next", RING, OUTPUT, "            p = (scores - new[..., None]).exp()\n            out", "            p = (scores - new[..., None]).exp()\n            block = wait() if wait else block\n            wait = None\n            out"),
    one("heads share keys in turn", RING, OUTPUT, "        q = q.unflatten(1, (k.shape[1], -1))  # (B, h, g, t, D): the heads that share a key head\n", "        q = q.unflatten(1, (-1, k.shape[1])).transpose(1, 2)\n"),
    one("blocks travel in BF16", RING, OUTPUT, FORWARD_PASS, "wait = pass_on(block.bfloat16().float(), group) if step < ranks - 1 else None"),
    one("a collective of the world", RING, OUTPUT, APPLY, "    dist.barrier()\n" + APPLY, "barrier"),
    one("an output in FP64", RING, OUTPUT, "return out.flatten(1, 2)", "return out.flatten(1, 2).double()"),
    # the gradient of the queries
    one("delta left out", RING, DQ, DELTA, ""),
    one("delta of each block", RING, DQ, DELTA + ".mul_(p)", ".mul_(p)\n            ds = (ds - p * ds.sum(-1, keepdim=True))"),
    one("scale left out backward", RING, DQ, ".mul_(p).div_(q.shape[-1] ** 0.5)", ".mul_(p)"),
    one("queries learn from their own block alone", RING, DQ, 'dq[..., mine, :] += torch.einsum("bhgij,bhjd->bhgid", ds, k_)', 'dq[..., mine, :] += torch.einsum("bhgij,bhjd->bhgid", ds, k_) * (source == rank)'),
    one("softmax of each block made again", RING, DQ, AGAIN, AGAIN.replace("RingAttention.scores(q_, k_, source == rank) - lse[..., mine, None]).exp()", "RingAttention.scores(q_, k_, source == rank)).softmax(-1)")),
    Mutant("remembers the last call alone", RING, DQ, (
        (SAVE, "        RingAttention.kept = (q, k, v, out, lse)\n"), ("ctx.saved_tensors", "RingAttention.kept"))),
    one("another order backward", RING, DQ, BACKWARD_SOURCE, BACKWARD_SOURCE.replace("(rank - step)", "(rank + step)")),
    one("no gradient for the queries", RING, DQ, BACK, BACK.replace("dq.flatten(1, 2)", "None")),
    one("mask forgotten backward", RING, DQ, "(RingAttention.scores(q_, k_, source == rank)", "(RingAttention.scores(q_, k_, False)"),
    # the gradients of keys and values
    one("sent home one step short", RING, DKV, HOME, HOME.replace("pass_on(d_block, ctx.group)()", "pass_on(d_block, ctx.group)() if step < ranks - 1 else d_block")),
    one("sent home one step too far", RING, DKV, HOME, HOME + "            d_block = pass_on(d_block, ctx.group)() if step == ranks - 1 else d_block\n"),
    one("gradients do not travel", RING, DKV, HOME, ""),
    one("keys learn from their own rank alone", RING, DKV, HOME, "            home = d_block.clone() if not step else home\n            d_block = home\n"),
    one("gradient of the queries only", RING, DKV, BACK, "return dq.flatten(1, 2), None, None, None"),
    one("no gradient for the values", RING, DKV, BACK, BACK.replace("d_block[1]", "None")),
    one("keys' and values' gradients swapped", RING, DKV, BACK, "return dq.flatten(1, 2), d_block[1], d_block[0], None"),
    one("heads that share values are not summed", RING, DKV, 'torch.einsum("bhgij,bhgid->bhjd", p, g_)', 'torch.einsum("bhij,bhid->bhjd", p[:, :, 0], g_[:, :, 0])'),
    one("heads that share keys are averaged", RING, DKV, 'torch.einsum("bhgij,bhgid->bhjd", ds, q_)', 'torch.einsum("bhgij,bhgid->bhjd", ds, q_) / q.shape[2]'),
    one("gradients of the latest rank alone", RING, DKV, HOME, HOME + "            d_block = d_block if step == ranks - 1 else torch.zeros_like(d_block)\n"),
    one("averaged over ranks", RING, DKV, BACK, BACK.replace("d_block[0], d_block[1]", "d_block[0] / ranks, d_block[1] / ranks")),
    one("gradients of keys scaled twice", RING, DKV, BACK, BACK.replace("d_block[0]", "d_block[0] / q.shape[-1] ** 0.5")),
    # memory
    Mutant("blocks kept until the end", RING, MEMORY, ((START, START + "        seen = []\n"), (KEEP, "            seen.append(block)\n" + KEEP))),
    Mutant("blocks saved for the backward pass", RING, MEMORY, (
        (START, START + "        ctx.blocks = []\n"), (KEEP, "            ctx.blocks.append(block)\n" + KEEP),
        (BACKWARD_PASS, "wait = (lambda: ctx.blocks[step + 1]) if step < ranks - 1 else None"))),
    Mutant("scores saved for the backward pass", RING, MEMORY, (
        (START, START + "        ctx.scores = []\n"), (KEEP, "            ctx.scores.append(scores)\n" + KEEP),
        (AGAIN, "            p = (ctx.scores[step] - lse[..., mine, None]).exp()\n"))),
    Mutant("blocks kept as numbers of Python", RING, MEMORY, ((START, START + "        seen = []\n"), (KEEP, "            seen.append(block.tolist())\n" + KEEP))),
    Mutant("blocks kept in NumPy", RING, MEMORY, ((START, START + "        seen = []\n"), (KEEP, "            seen.append(block.numpy().copy())\n" + KEEP))),
    one("whole keys gathered", RING, MEMORY, START, START + "        whole = [torch.empty_like(block) for _ in range(ranks)]\n        dist.all_gather(whole, block, group=group)\n"),
    one("room for the whole sequence", RING, MEMORY, START, START + "        whole = torch.empty(ranks, *block.shape)\n"),
    one("scores with the whole sequence", RING, MEMORY, START, START + "        whole = torch.empty(*q.shape[:-1], ranks * q.shape[-2])\n"),
    one("whole gradients in one tensor", RING, MEMORY, "        d_block = torch.zeros_like(block)\n", "        d_block = torch.zeros_like(block)\n        whole = torch.zeros(ranks, *block.shape)\n"),
    both("autograd keeps every block", MEMORY, GRAPH),
    both("attention over whole keys", MEMORY, GATHERED),
    one("ten times the scores", RING, MEMORY, START, START + "        more = torch.empty(10, *q.shape[:-1], q.shape[-2])\n"),
    # messages
    one("one step too many forward", RING, BLOCKS, FORWARD_PASS, "wait = pass_on(block, group)"),
    one("one step too many backward", RING, BLOCKS, BACKWARD_PASS, "wait = pass_on(block, ctx.group)"),
    one("heads repeated before they travel", RING, BLOCKS, APPLY, "    n = q.shape[1] // k.shape[1]\n    return RingAttention.apply(q, k.repeat_interleave(n, 1), v.repeat_interleave(n, 1), group)\n"),
    one("blocks travel in FP64", RING, BLOCKS, FORWARD_PASS, "wait = (lambda go=pass_on(block.double(), group): go().float()) if step < ranks - 1 else None"),
    one("gradients travel apart from zeros", RING, BLOCKS, HOME, HOME + "            pass_on(torch.zeros_like(d_block), ctx.group)()\n"),
    one("gradients sent straight home", RING, BLOCKS, HOME, STRAIGHT_HOME),
    one("blocks broadcast to all", RING, BLOCKS, "            " + FORWARD_PASS + "\n", BROADCAST),
    Mutant("the ring turns the other way", RING, BLOCKS, (
        ("group_peer=(rank + 1) % ranks)", "group_peer=(rank - 1) % ranks)"), ("coming, group=group, group_peer=(rank - 1) % ranks)", "coming, group=group, group_peer=(rank + 1) % ranks)"),
        (SOURCE, SOURCE.replace("(rank - step)", "(rank + step)")), (BACKWARD_SOURCE, BACKWARD_SOURCE.replace("(rank - step)", "(rank + step)")))),
    both("all keys by all-gather", BLOCKS, GATHERED),
    one("gradients of all summed by all", RING, BLOCKS, "        return dq", "        dist.all_reduce(torch.zeros(ranks, *d_block.shape), group=ctx.group)\n        return dq"),
    one("keys as objects", RING, BLOCKS, START, START + "        dist.all_gather_object([None] * ranks, block, group=group)\n"),
    Mutant("messages where no mode looks", RING, BLOCKS, (
        (FORWARD_PASS, "wait = hidden(block, group) if step < ranks - 1 else None"),
        ("def meets(", "def hidden(x, group):\n    from torch.utils._python_dispatch import _disable_current_modes\n\n    with _disable_current_modes():\n        return pass_on(x, group)\n\n\ndef meets("))),
    Mutant("puts its own words for PyTorch's", RING, BLOCKS, (
        (START, START + "        dist.batch_isend_irecv = lambda ops, real=dist.batch_isend_irecv: real(ops)\n"),)),
    # work
    one("hidden blocks are masked", RING, WORK, FORWARD_MEETS, MASKED),
    one("both halves of my queries, one of them for nothing", RING, WORK, FORWARD_MEETS, FORWARD_MEETS + "            RingAttention.scores(q, block[0], False)\n"),
    one("scores made twice", RING, WORK, AGAIN, AGAIN + AGAIN + AGAIN),
    Mutant("products where no mode looks", RING, WORK, (
        ("        scores = torch.einsum(", "        from torch.utils._python_dispatch import _disable_current_modes\n\n        with _disable_current_modes():\n            scores = torch.einsum("),)),
    # the step
    one("mean of means", TRAIN, LOSS, MEAN, 'F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / (targets != -100).sum().clamp(min=1) / dist.get_world_size(group)'),
    one("a mean of nothing", TRAIN, LOSS, MEAN, "F.cross_entropy(logits.flatten(0, 1), targets.flatten()) / dist.get_world_size(group)"),
    one("loss of this rank", TRAIN, LOSS, JOIN, ""),
    one("sum of losses", TRAIN, LOSS, MEAN, MEAN.replace(" / count", "")),
    one("ignored targets count", TRAIN, LOSS, "(targets != -100).sum()", "torch.tensor(targets.numel())"),
    one("count of this rank", TRAIN, LOSS, COUNT, "    count = (targets != -100).sum().clamp(min=1)\n"),
    one("loss averaged over ranks", TRAIN, LOSS, JOIN, JOIN + "    loss = loss / dist.get_world_size(group)\n"),
    one("loss on rank 0 only", TRAIN, LOSS, JOIN, "    dist.reduce(loss, group=group, group_dst=0)\n"),
    one("loss of the world", TRAIN, LOSS, JOIN, "    dist.all_reduce(loss)\n"),
    one("a tensor comes back", TRAIN, LOSS, "return loss.item()", "return loss"),
    one("model called twice", TRAIN, LOSS, "    logits = model(inputs, positions)\n", "    model(inputs, positions)\n    logits = model(inputs, positions)\n"),
    one("no all-reduce of gradients", TRAIN, GRADIENTS, REDUCE, "            pass\n"),
    one("gradients averaged", TRAIN, GRADIENTS, REDUCE, REDUCE + "            p.grad /= dist.get_world_size(group)\n"),
    one("old gradients leak in", TRAIN, GRADIENTS, CLEAR, ""),
    one("gradients on rank 0 only", TRAIN, GRADIENTS, REDUCE, "            dist.reduce(p.grad, group=group, group_dst=0)\n"),
    one("biases left out", TRAIN, GRADIENTS, "if p.grad is not None:", "if p.grad is not None and p.dim() > 1:"),
    one("gradients of the world", TRAIN, GRADIENTS, REDUCE, "            dist.all_reduce(p.grad)\n"),
    one("the frozen get gradients", TRAIN, GRADIENTS, "        if p.grad is not None:\n", "        if p.grad is None:\n            p.grad = torch.zeros_like(p)\n        else:\n"),
    one("joined before the backward pass", TRAIN, GRADIENTS, "    loss.backward()\n", "    loss.backward()\n    model.zero_grad()\n"),
    one("every rank's loss is backed by all", TRAIN, GRADIENTS, "    loss.backward()\n", "    (loss * dist.get_world_size(group)).backward()\n"),
]  # fmt: skip

RIGHT = {}
