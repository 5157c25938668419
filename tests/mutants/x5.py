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
BEFORE = (
    "        return slice(None), slice(half)  # their earlier chunk lies before both of mine, their later one behind\n"
)
BEHIND = "        return slice(half, None), slice(None)  # my later chunk lies behind both of theirs, my earlier one before\n"
SCALE = " / q.shape[-1] ** 0.5\n        later"
START = (
    '        block, out, lse = torch.stack([k, v]), torch.zeros_like(q), torch.full_like(q[..., 0], float("-inf"))\n'
)
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
GRAPH = """
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
"""
GATHERED = """
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
"""
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
    one("one token left over is let pass", SHARD, CHUNKS, "    if left:\n", "    if left > 1:\n"),
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
    Mutant("whole keys put together", RING, MEMORY, ((START, START + "        seen = []\n"), (KEEP, "            seen.append(block)\n            whole = torch.cat(seen, 3)\n" + KEEP))),
    one("room for the whole sequence", RING, MEMORY, START, START + "        whole = torch.empty(ranks, *block.shape)\n"),
    one("scores with the whole sequence", RING, MEMORY, START, START + "        whole = torch.empty(*q.shape[:-1], ranks * q.shape[-2])\n"),
    one("whole gradients in one tensor", RING, MEMORY, "        d_block = torch.zeros_like(block)\n", "        d_block = torch.zeros_like(block)\n        whole = torch.zeros(ranks, *block.shape)\n"),
    both("autograd keeps every block", MEMORY, GRAPH),
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
    Mutant("puts out the meter", RING, MEMORY, (
        (START, START + "        from helpers.meter.profile import MemoryProfile\n\n        MemoryProfile.fill = lambda *_: None\n"),)),
    Mutant("puts out the spy", RING, WORK, (
        (START, START + "        from helpers.exercises.x5.ring_spy import RingSpy\n\n        RingSpy.evidence = property(lambda self: {})\n"),)),
    Mutant("puts out the watch on Python's memory", RING, MEMORY, (
        (START, START + "        import tracemalloc\n\n        tracemalloc.get_traced_memory = lambda: (0, 0)\n"),)),
    Mutant("another multiplication", RING, OUTPUT, ((START, START + "        torch.einsum = lambda *args, real=torch.einsum: real(*args)\n"),)),
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

RIGHT = {
    "isend and irecv, sums and maxima apart": """
import math

import torch
import torch.distributed as dist
import torch.nn.functional as F


def shard(tokens, rank, ranks):
    length = tokens.size(1) - 1
    if length % (2 * ranks) != 0:
        raise ValueError(f"{length} is not a multiple of {2 * ranks}")
    size = length // (2 * ranks)
    late = 2 * ranks - 1 - rank
    positions = torch.tensor([*range(rank * size, (rank + 1) * size), *range(late * size, (late + 1) * size)])
    window = tokens.unfold(1, 2, 1)[:, positions]
    return window[..., 0], window[..., 1], positions


def pass_on(x, group):
    n, me = group.size(), group.rank()
    if n == 1:
        return lambda: x
    out, into = x.contiguous(), torch.empty(x.shape, dtype=x.dtype, device=x.device)
    sending = dist.isend(out, group=group, group_dst=(me + 1) % n)
    receiving = dist.irecv(into, group=group, group_src=(me + n - 1) % n)

    def finish():
        receiving.wait()
        sending.wait()
        return into

    return finish


def chunks_seen(owner, me, q, k, v):
    half = k.size(2) // 2
    if owner < me:
        return 0, q, k[:, :, :half], v[:, :, :half]
    return (half, q[:, :, half:], k, v) if owner > me else (0, q, k, v)


def masked_scores(q, k, owner, me):
    s = q @ k.transpose(-1, -2) * (1 / math.sqrt(q.size(-1)))
    if owner == me:
        i = torch.arange(s.size(-1))
        s = s.where(i[:, None] >= i, torch.tensor(-torch.inf))
    return s


class Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, group):
        n, me = group.size(), group.rank()
        times = q.size(1) // k.size(1)
        top = q.new_full((*q.shape[:-1], 1), -torch.inf)
        total, weighted = torch.zeros_like(top), torch.zeros(q.shape)
        keys, values = k, v
        for step in range(n):
            owner = (me - step) % n
            more = step + 1 < n
            coming = [pass_on(x, group) for x in (keys, values)] if more else []
            start, queries, ks, vs = chunks_seen(owner, me, q, keys, values)
            s = masked_scores(queries, ks.repeat_interleave(times, 1), owner, me)
            old = top[:, :, start:]
            new = torch.maximum(old, s.max(-1, keepdim=True).values)
            shrink, p = torch.exp(old - new), torch.exp(s - new)
            total[:, :, start:] = total[:, :, start:] * shrink + p.sum(-1, keepdim=True)
            weighted[:, :, start:] = weighted[:, :, start:] * shrink + p @ vs.repeat_interleave(times, 1)
            top[:, :, start:] = new
            if more:
                keys, values = (finish() for finish in coming)
        out = weighted / total
        ctx.group = group
        ctx.save_for_backward(q, k, v, out, top + total.log())
        return out

    @staticmethod
    def backward(ctx, dout):
        group = ctx.group
        n, me = group.size(), group.rank()
        q, k, v, out, lse = ctx.saved_tensors
        times = q.size(1) // k.size(1)
        row = (dout * out).sum(-1, keepdim=True)
        dq, dk, dv = torch.zeros(q.shape), torch.zeros(k.shape), torch.zeros(v.shape)
        keys, values = k, v
        for step in range(n):
            owner = (me - step) % n
            more = step + 1 < n
            coming = [pass_on(x, group) for x in (keys, values)] if more else []
            start, queries, ks, vs = chunks_seen(owner, me, q, keys, values)
            wide_k, wide_v, g = ks.repeat_interleave(times, 1), vs.repeat_interleave(times, 1), dout[:, :, start:]
            p = torch.exp(masked_scores(queries, wide_k, owner, me) - lse[:, :, start:])
            ds = p * (g @ wide_v.transpose(-1, -2) - row[:, :, start:]) / math.sqrt(q.size(-1))
            dq[:, :, start:] += ds @ wide_k
            dk[:, :, : ks.size(2)] += (ds.transpose(-1, -2) @ queries).unflatten(1, (-1, times)).sum(2)
            dv[:, :, : vs.size(2)] += (p.transpose(-1, -2) @ g).unflatten(1, (-1, times)).sum(2)
            going = [pass_on(x, group) for x in (dk, dv)]
            dk, dv = (finish() for finish in going)
            if more:
                keys, values = (finish() for finish in coming)
        return dq, dk, dv, None


def ring_attention(q, k, v, group):
    return Ring.apply(q, k, v, group)


def train_step(model, inputs, targets, positions, group):
    params = [p for p in model.parameters() if p.requires_grad]
    logits = model(inputs, positions)
    total = F.cross_entropy(logits.transpose(1, 2), targets, reduction="sum", ignore_index=-100)
    both = torch.stack([total.detach().double(), targets.ne(-100).sum().double()])
    dist.all_reduce(both, group=group)
    grads = torch.autograd.grad(total, params)
    for p, g in zip(params, grads):
        g = g / both[1].to(g.dtype)
        dist.all_reduce(g, group=group)
        p.grad = g
    return float(both[0] / both[1])
""",
    "the fused operation with its log-sum-exp": """
import torch
import torch.distributed as dist
from torch import nn

def fused(*args):
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*args)


def fused_backward(*args):
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(*args)


def shard(tokens, rank, ranks):
    pieces = 2 * ranks
    if (tokens.shape[-1] - 1) % pieces:
        raise ValueError("the sequence does not divide into chunks of one size")
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    places = torch.arange(inputs.shape[1])
    held = []
    for everything in (inputs, targets, places):
        cut = everything.chunk(pieces, -1)
        held.append(torch.cat((cut[rank], cut[-1 - rank]), -1))
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
            self.requests = [dist.irecv(self.buffer, src=before, group=group), dist.isend(self.sent, dst=behind, group=group)]

    def __call__(self):
        while self.requests:
            self.requests.pop().wait()
        return self.buffer


def pair(mine, theirs, half):
    if mine == theirs:
        return slice(0, 2 * half), slice(0, 2 * half)
    return (slice(half, 2 * half), slice(0, 2 * half)) if mine < theirs else (slice(0, 2 * half), slice(0, half))


def wide(x, heads):
    return x[:, :, None].expand(-1, -1, heads // x.shape[1], -1, -1).reshape(x.shape[0], heads, *x.shape[2:])


class Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, group):
        N, r, H = dist.get_world_size(group), dist.get_rank(group), q.shape[1]
        half = q.shape[2] // 2
        q, held = q.contiguous(), torch.stack((k, v))
        out = lse = None
        for step in range(N):
            s = (r - step) % N
            arriving = pass_on(held, group) if step < N - 1 else None
            rows, columns = pair(r, s, half)
            part, part_lse = fused(q[:, :, rows], wide(held[0][:, :, columns], H), wide(held[1][:, :, columns], H), 0.0, s == r)
            if out is None:
                out, lse = part, part_lse
            else:
                share = torch.sigmoid(part_lse - lse[:, :, rows]).unsqueeze(-1)
                out[:, :, rows] = torch.lerp(out[:, :, rows], part, share)
                lse[:, :, rows] = torch.logaddexp(lse[:, :, rows], part_lse)
            if arriving:
                held = arriving()
        ctx.group, ctx.half = group, half
        ctx.save_for_backward(q, k, v, out.contiguous(), lse)
        return out

    @staticmethod
    def backward(ctx, dout):
        q, k, v, out, lse = ctx.saved_tensors
        group, half, dout = ctx.group, ctx.half, dout.contiguous()
        N, r, H, h = dist.get_world_size(group), dist.get_rank(group), q.shape[1], k.shape[1]
        held, dq = torch.stack((k, v)), torch.zeros_like(q)
        dheld = torch.zeros_like(held)
        for step in range(N):
            s = (r - step) % N
            arriving = pass_on(held, group) if step < N - 1 else None
            rows, columns = pair(r, s, half)
            a, b, c = fused_backward(
                dout[:, :, rows], q[:, :, rows], wide(held[0][:, :, columns], H), wide(held[1][:, :, columns], H),
                out[:, :, rows], lse[:, :, rows], 0.0, s == r,
            )
            dq[:, :, rows] += a
            dheld[0][:, :, columns] += b.unflatten(1, (h, -1)).sum(2)
            dheld[1][:, :, columns] += c.unflatten(1, (h, -1)).sum(2)
            dheld = pass_on(dheld, group)()
            held = arriving() if arriving else held
        return dq, *dheld.unbind(), None


def ring_attention(q, k, v, group):
    return Fused.apply(q, k, v, group)


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
""",
    "made again by autograd, counts as objects": '''
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, scaled_dot_product_attention


def shard(tokens, rank, ranks):
    B, T = tokens.shape[0], tokens.shape[1] - 1
    assert_size = T // (2 * ranks)
    if assert_size * 2 * ranks != T:
        raise ValueError(T)
    index = torch.arange(T).reshape(2, ranks, -1)
    index[1] = index[1].flip(0)  # the second row of chunks, from behind
    mine = index[:, rank].reshape(-1)
    return tokens.gather(1, mine.expand(B, -1)), tokens.gather(1, mine.expand(B, -1) + 1), mine


def pass_on(x, group):
    r, n = dist.get_rank(group), dist.get_world_size(group)
    if n < 2:
        return lambda: x
    flat = x.reshape(-1)
    came = torch.empty_like(flat)
    sent = dist.isend(flat, group=group, group_dst=(r + 1) % n, tag=5)
    received = dist.irecv(came, group=group, group_src=(r - 1) % n, tag=5)

    def wait():
        received.wait()
        sent.wait()
        return came.view(x.shape)

    return wait


def attend(q, k, v, own):
    """Output and log-sum-exp of a block."""
    g = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(g, dim=1) for x in (k, v))
    scores = (q * q.shape[-1] ** -0.5) @ k.mT
    if own:
        scores = scores + torch.full(scores.shape[-2:], float("-inf")).triu(1)
    lse = torch.logsumexp(scores, -1, keepdim=True)
    return (scores - lse).exp() @ v, lse


def cut(q, k, v, r, s):
    half = q.shape[2] // 2
    if s < r:
        k, v = k.narrow(2, 0, half), v.narrow(2, 0, half)
    if s > r:
        q = q.narrow(2, half, half)
    return q, k, v


class RoundAndRound(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, group):
        r, n = dist.get_rank(group), dist.get_world_size(group)
        out, lse = attend(q, k, v, own=True)
        block = torch.cat([k, v], -1)
        for s in [(r - i) % n for i in range(1, n)]:
            block = pass_on(block, group)()
            rows, ks, vs = cut(q, *block.chunk(2, -1), r, s)
            o, l = attend(rows, ks, vs, own=False)
            view_o, view_l = out[:, :, -rows.shape[2] :], lse[:, :, -rows.shape[2] :]
            both = torch.logaddexp(view_l, l)
            view_o.copy_(view_o * (view_l - both).exp() + o * (l - both).exp())
            view_l.copy_(both)
        ctx.group = group
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, lse = ctx.saved_tensors
        group = ctx.group
        r, n = dist.get_rank(group), dist.get_world_size(group)
        dq, block = torch.zeros_like(q), torch.cat([k, v], -1)
        dblock = torch.zeros(block.shape)
        for i in range(n):
            s = (r - i) % n
            if i:
                block, dblock = pass_on(block, group)(), pass_on(dblock, group)()
            rows, ks, vs = (x.detach().clone().requires_grad_() for x in cut(q, *block.chunk(2, -1), r, s))
            t = rows.shape[2]
            with torch.enable_grad():
                o, l = attend(rows, ks, vs, own=s == r)
                # the whole output is sum of o * exp(l - lse), and lse moves with l
                weight = (l - lse[:, :, -t:]).exp().detach()
                g = grad[:, :, -t:]
                target = (o * weight * g).sum() + (l * (weight * ((o.detach() - out[:, :, -t:]) * g).sum(-1, keepdim=True))).sum()
            a, b, c = torch.autograd.grad(target, [rows, ks, vs])
            dq[:, :, -t:] += a
            dblock[:, :, : ks.shape[2]] += torch.cat([b, c], -1)
        dblock = pass_on(dblock, group)()
        return dq, *dblock.chunk(2, -1), None


def ring_attention(q, k, v, group):
    return RoundAndRound.apply(q, k, v, group)


def train_step(model, inputs, targets, positions, group):
    model.zero_grad(set_to_none=False)
    n = dist.get_world_size(group)
    keep = targets != -100
    numbers = [None] * n
    dist.all_gather_object(numbers, keep.sum().item(), group=group)
    logits = model(inputs, positions)
    losses = cross_entropy(logits[keep], targets[keep], reduction="sum") if keep.any() else 0.0 * logits.sum()
    (losses / sum(numbers)).backward()
    for p in model.parameters():
        if p.requires_grad:
            dist.all_reduce(p.grad, group=group)
    sums = [None] * n
    dist.all_gather_object(sums, losses.item(), group=group)
    return sum(sums) / sum(numbers)
''',
    "gradients that set out one rank ahead, chunk by chunk": '''
import torch
import torch.distributed as dist
import torch.nn.functional as F


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
''',
    "blocking messages, even ranks first": '''
import torch
import torch.distributed as dist
import torch.nn.functional as F


def shard(tokens, rank, ranks):
    T = tokens.shape[1] - 1
    if T % ranks or (T // ranks) % 2:
        raise ValueError("no even parts")
    c = T // ranks // 2
    first, second = range(rank * c, rank * c + c), range(T - (rank + 1) * c, T - rank * c)
    where = torch.as_tensor(list(first) + list(second), dtype=torch.long)
    return tokens[:, where], tokens[:, where + 1], where


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


def attention_of(q, k, v, mask):
    s = torch.baddbmm(mask.expand(q.shape[0], -1, -1), q, k.transpose(1, 2), alpha=q.shape[-1] ** -0.5)
    m = s.logsumexp(2)
    return torch.bmm((s - m.unsqueeze(2)).exp(), v), m


class Spread(torch.autograd.Function):
    """Heads are flattened into the batch; each of them has a row of its own in every product."""

    @staticmethod
    def forward(ctx, q, k, v, group):
        B, H, t, D = q.shape
        h, size, me = k.shape[1], dist.get_world_size(group), dist.get_rank(group)
        flat = q.reshape(B * H, t, D)
        ctx.geometry = (B, H, h, t, D, size, me, group)
        ctx.causal = torch.full((t, t), float("-inf")).triu(1)
        kv = torch.stack([k.reshape(B * h, t, D), v.reshape(B * h, t, D)])
        O, L = None, None
        for hop in range(size):
            who = (me + size - hop) % size
            K, V = kv.repeat_interleave(H // h, 1)
            if hop == 0:
                O, L = attention_of(flat, K, V, ctx.causal)
            else:
                part = slice(None) if who < me else slice(t // 2, None)
                keep = slice(t // 2) if who < me else slice(None)
                o, l = attention_of(flat[:, part], K[:, keep], V[:, keep], torch.zeros(1, 1))
                weights = torch.softmax(torch.stack([L[:, part], l]), 0).unsqueeze(-1)
                O[:, part] = weights[0] * O[:, part] + weights[1] * o
                L[:, part] = torch.stack([L[:, part], l]).logsumexp(0)
            if hop < size - 1:
                kv = swap(kv, group)
        ctx.save_for_backward(flat, k, v, O, L)
        return O.view(B, H, t, D)

    @staticmethod
    def backward(ctx, dO):
        flat, k, v, O, L = ctx.saved_tensors
        B, H, h, t, D, size, me, group = ctx.geometry
        dO = dO.reshape(B * H, t, D)
        correction = torch.einsum("ntd,ntd->nt", dO, O).unsqueeze(2)
        kv = torch.stack([k.reshape(B * h, t, D), v.reshape(B * h, t, D)])
        dkv, dQ = torch.zeros_like(kv), torch.zeros_like(flat)
        for hop in range(size):
            who = (me + size - hop) % size
            part = slice(None) if who <= me else slice(t // 2, None)
            keep = slice(t // 2) if who < me else slice(None)
            K, V = (x.repeat_interleave(H // h, 0) for x in (kv[0, :, keep], kv[1, :, keep]))
            Q, G = flat[:, part], dO[:, part]
            S = torch.bmm(Q, K.transpose(1, 2)) * D**-0.5
            if hop == 0:
                S = S + ctx.causal
            P = (S - L[:, part].unsqueeze(2)).exp()
            dS = P * (torch.bmm(G, V.transpose(1, 2)) - correction[:, part]) * D**-0.5
            dQ[:, part] += torch.bmm(dS, K)
            dK, dV = torch.bmm(dS.transpose(1, 2), Q), torch.bmm(P.transpose(1, 2), G)
            dkv[0, :, keep] += dK.unflatten(0, (B * h, -1)).sum(1)
            dkv[1, :, keep] += dV.unflatten(0, (B * h, -1)).sum(1)
            dkv = swap(dkv, group)
            if hop < size - 1:
                kv = swap(kv, group)
        return dQ.view(B, H, t, D), dkv[0].view(B, h, t, D), dkv[1].view(B, h, t, D), None


def ring_attention(q, k, v, group):
    return Spread.apply(q, k, v, group)


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
''',
    "saved by hooks, keys and values in one line": '''
import torch
import torch.distributed as dist
import torch.nn.functional as F


def shard(tokens, rank, ranks):
    pieces = torch.arange(tokens.shape[1] - 1).tensor_split(2 * ranks)
    if len({len(piece) for piece in pieces}) > 1:
        raise ValueError("chunks of several sizes")
    order = torch.hstack([pieces[rank], pieces[~rank]])
    return tokens[:, order], tokens[:, order + 1], order


def pass_on(x, group):
    me, all_of_them = dist.get_rank(group), dist.get_world_size(group)
    if all_of_them == 1:
        return x.clone
    came = torch.empty(x.shape, dtype=x.dtype)
    going = [
        dist.P2POp(dist.isend, x.contiguous(), group=group, group_peer=(me + 1) % all_of_them),
        dist.P2POp(dist.irecv, came, group=group, group_peer=(me or all_of_them) - 1),
    ]
    tickets = iter(dist.batch_isend_irecv(going))

    def arrive():
        for ticket in tickets:
            ticket.wait()
        return came

    return arrive


def rounds(line, group):
    """Yield (number of the rank it is from, line) for each block that comes by."""
    me, n = dist.get_rank(group), dist.get_world_size(group)
    for hop in range(n - 1):
        arrive = pass_on(line, group)
        yield (me - hop) % n, line
        line = arrive()
    yield (me + 1) % n, line


def softmax_part(q, k, own):
    s = torch.einsum("bngqd,bnkd->bngqk", q, k) * q.shape[-1] ** -0.5
    if own:
        s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool).tril(), float("-inf"))
    return s


class Travelling(torch.autograd.Function):
    @staticmethod
    def forward(q, line, group):
        me, half = dist.get_rank(group), q.shape[3] // 2
        state = None
        for owner, block in rounds(line, group):
            k, v = block[..., : half * 2 if owner >= me else half, :].tensor_split(2, 0)
            first = half if owner > me else 0
            s = softmax_part(q[:, :, :, first:], k[0], owner == me)
            lse = s.logsumexp(-1, keepdim=True)
            o = torch.einsum("bngqk,bnkd->bngqd", (s - lse).exp(), v[0])
            if state is None:
                state = o, lse
                continue
            old_o, old_lse = state[0][:, :, :, first:], state[1][:, :, :, first:]
            old_o.add_((o - old_o) * torch.sigmoid(lse - old_lse))
            old_lse.copy_(torch.logaddexp(lse, old_lse))
        return state

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.group = inputs[2]
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs[:2], *output)

    @staticmethod
    def backward(ctx, grad, _):
        q, line, out, lse = ctx.saved_tensors
        me, half, scale = dist.get_rank(ctx.group), q.shape[3] // 2, q.shape[-1] ** -0.5
        grad_q, grad_line = torch.zeros_like(q), torch.zeros_like(line)
        for owner, block in rounds(line, ctx.group):
            length, first = half * 2 if owner >= me else half, half if owner > me else 0
            k, v = block[0, ..., :length, :], block[1, ..., :length, :]
            qs, gs, os, ls = (x[:, :, :, first:] for x in (q, grad, out, lse))
            p = (softmax_part(qs, k, owner == me) - ls).exp()
            inner = torch.einsum("bngqd,bnkd->bngqk", gs, v) - (gs * os).sum(-1, keepdim=True)
            inner = inner * p * scale
            grad_q[:, :, :, first:] += torch.einsum("bngqk,bnkd->bngqd", inner, k)
            grad_line[0, ..., :length, :] += torch.einsum("bngqk,bngqd->bnkd", inner, qs)
            grad_line[1, ..., :length, :] += torch.einsum("bngqk,bngqd->bnkd", p, gs)
            grad_line = pass_on(grad_line, ctx.group)()
        return grad_q, grad_line, None


def ring_attention(q, k, v, group):
    grouped = q.reshape(q.shape[0], k.shape[1], -1, *q.shape[2:])
    out, _ = Travelling.apply(grouped, torch.stack((k, v)), group)
    return out.reshape(q.shape)


def train_step(model, inputs, targets, positions, group):
    weights = [p for p in model.parameters() if p.requires_grad]
    model.zero_grad()
    sums = torch.zeros(2, dtype=torch.float64)
    loss = F.cross_entropy(model(inputs, positions).movedim(-1, 1), targets, reduction="none").sum()
    loss.backward()
    sums[0], sums[1] = loss.item(), targets.numel() - (targets == -100).sum()
    dist.all_reduce(sums, group=group)
    vector = torch.nn.utils.parameters_to_vector([p.grad for p in weights])
    dist.all_reduce(vector, group=group)
    for p, piece in zip(weights, (vector / sums[1]).split([p.numel() for p in weights])):
        p.grad.copy_(piece.view(p.shape))
    total, count = sums.tolist()
    return total / count
''',
}
