"""Wrong and right answers for the practice tasks of tensor parallel."""

from . import Mutant

LAYERS, HEADS, LOSS, SEQUENCE = (f"tensor_parallel.{part}" for part in ("layers", "heads", "loss", "sequence"))


def layers(check: str, name: str, *replace: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, LAYERS, check, replace, raises)


def heads(check: str, name: str, *replace: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, HEADS, check, replace, raises)


def loss(check: str, name: str, *replace: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, LOSS, check, replace, raises)


def sequence(check: str, name: str, *replace: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, SEQUENCE, check, replace, raises)


# the layers
ENTER_FORWARD, ENTER_CLONE, ENTER_SUM = (
    "return x.view_as(x)",
    "whole = gradient.clone(memory_format=torch.contiguous_format)",
    "        dist.all_reduce(whole)\n",
)
LEAVE_CLONE, LEAVE_SUM, LEAVE_BACK = (
    "total = x.clone(memory_format=torch.contiguous_format)",
    "        dist.all_reduce(total)\n",
    "return gradient  # whole on every rank already",
)
COLUMN, ROW = "return F.linear(Enter.apply(x), weight)", "y = Leave.apply(F.linear(x, weight))"
BIAS = "return y if bias is None else y + bias"
N = "dist.get_world_size()"
# the heads
MINE, SERVED = (
    "mine = range(rank * heads // ranks, (rank + 1) * heads // ranks)",
    "return [head * kv_heads // heads for head in mine]",
)
NOBODY, ZEROS = (
    "return gradient  # nobody shares a head",
    "everyone = gradient.new_zeros(kv_heads, *gradient.shape[1:])",
)
TAKEN, IF_NONE = "return everyone[held[dist.get_rank()]]", "if sum(map(len, held)) == kv_heads:"
SUM_HEADS = "    dist.all_reduce(everyone)\n"
# the loss
MAX, SHIFT = (
    "    dist.all_reduce(largest, op=dist.ReduceOp.MAX)  # a constant: it cancels\n",
    "shifted = logits - largest[:, None]",
)
EXP = "exponentials = Leave.apply(shifted.exp().sum(dim=1))"
PICK, COUNTS = "picked = Leave.apply(picked.where(here, torch.zeros_like(picked)))", "counts = targets != -100"
MEAN, WORDS = "return ((exponentials.log() - picked) * counts).sum() / counts.sum()", "    words = logits.shape[1]\n"
LOCAL, HERE = "local = targets - dist.get_rank() * words", "here = (local >= 0) & (local < words)"
# the sequence
PARTS = "parts = [part.contiguous() for part in gradient.chunk(dist.get_world_size(), dim=1)]"
SCATTERED, GATHERED = "        dist.reduce_scatter(added, parts)\n", "return torch.cat(tokens, dim=1)"
MIRROR_FORWARD, MIRROR_BACK = "return Gather.backward(ctx, x)", "return Gather.forward(ctx, gradient)"
CONTIGUOUS = "mine = x.contiguous()"
BY_ALL_REDUCE = "        everything = torch.stack(parts)\n        dist.all_reduce(everything)\n        added = everything[dist.get_rank()]\n"

MUTANTS = [
    # layers
    *(layers("sums_one_way_only", *mutant) for mutant in (
        ("nothing summed on the way back", (ENTER_SUM, "")),
        ("the mean on the way back", (ENTER_SUM, ENTER_SUM + f"        whole = whole / {N}\n")),
        ("summed forward as well, where paths part", (ENTER_FORWARD, "y = x.clone()\n        dist.all_reduce(y)\n        return y")),
        ("no sum where paths meet", (LEAVE_SUM, "")),
        ("mean for sum", ("return total", f"return total / {N}")),
        ("the largest for the sum", (LEAVE_SUM, "        dist.all_reduce(total, op=dist.ReduceOp.MAX)\n")),
        ("rank 0 alone has the sum", (LEAVE_SUM, "        dist.reduce(total, dst=0)\n")),
        ("gradient shared out", (LEAVE_BACK, f"return gradient / {N}")),
        ("summed for two ranks", (LEAVE_SUM, LEAVE_SUM + f"        total = total * 2 / {N}\n")),
    )),
    layers("sums_one_way_only", "summed backward, too", (LEAVE_BACK, "gradient = gradient.clone()\n        dist.all_reduce(gradient)\n        return gradient"), raises="whole already on each"),
    layers("sums_one_way_only", "no gradient for what came before", ("        return whole\n", "        return torch.zeros_like(whole)\n")),
    *(layers("layers_of_one_process", *mutant) for mutant in (
        ("column without Enter", (COLUMN, "return F.linear(x, weight)")),
        ("column with Leave", (COLUMN, "return Leave.apply(F.linear(Enter.apply(x), weight))")),
        ("row without Leave", (ROW, "y = F.linear(x, weight)")),
        ("row enters as well", (ROW, "y = Leave.apply(F.linear(Enter.apply(x), weight))")),
        ("bias of rank 0 only", (ROW, "y = Leave.apply(F.linear(x, weight, bias if dist.get_rank() == 0 else None))"), (BIAS, "return y")),
        ("bias shared out, its gradient is not", (ROW, f"y = Leave.apply(F.linear(x, weight, None if bias is None else bias / {N}))"), (BIAS, "return y")),
        ("the gradient of x is cut off", (ROW, "y = Leave.apply(F.linear(x.detach(), weight))")),
        ("the gradient of the weight is cut off", (ROW, "y = Leave.apply(F.linear(x, weight.detach()))")),
        ("the bias learns nothing", (BIAS, "return y if bias is None else y + bias.detach()")),
        ("gradients lost when x needs none", (ROW, "y = Leave.apply(F.linear(x, weight))\n    y = y if x.requires_grad else y.detach()")),
        ("column: gradients lost when x needs none", (COLUMN, "return F.linear(Enter.apply(x), weight if x.requires_grad else weight.detach())")),
        ("flattened and left so", (COLUMN, "return F.linear(Enter.apply(x).reshape(-1, x.shape[-1]), weight)")),
    )),
    layers("layers_of_one_process", "bias on each rank", (ROW, "y = Leave.apply(F.linear(x, weight, bias))"), (BIAS, "return y"), raises="has the bias 3 times"),
    layers("layers_of_one_process", "bias left out", (BIAS, "return y if bias is None else y + 0 * bias"), raises="lacks the bias"),
    *(layers("layers_of_one_process", *mutant, raises="Raised") for mutant in (
        ("only inputs of three dimensions", (COLUMN, "return torch.bmm(Enter.apply(x), weight.T.expand(len(x), -1, -1))")),
        ("only inputs of two dimensions", (ROW, "y = Leave.apply(torch.mm(x, weight.T))")),
        ("only with a bias", (BIAS, "return y + bias")),
        ("no inputs of one dimension", (COLUMN, "return torch.einsum('bi,oi->bo', Enter.apply(x).flatten(0, -2), weight).view(*x.shape[:-2], x.shape[-2], -1)")),
    )),
    *(layers("sends_one_all_reduce", *mutant) for mutant in (
        ("sent twice", (LEAVE_SUM, LEAVE_SUM + "        dist.all_reduce(total.clone())\n")),
        ("sent in two halves", (LEAVE_SUM, "        for half in total.chunk(2):\n            dist.all_reduce(half)\n")),
        ("sums in FP64", (LEAVE_CLONE, "total = x.double()"), ("return total", "return total.to(x.dtype)")),
        ("sums on the way back in FP64", (ENTER_CLONE, "whole = gradient.double()"), ("        return whole\n", "        return whole.to(gradient.dtype)\n")),
        ("the result stays in FP32", ("return total", "return total.float()")),
        ("gathers and adds", (LEAVE_SUM, f"        parts = [torch.empty_like(total) for _ in range({N})]\n        dist.all_gather(parts, total)\n        total = sum(parts)\n")),
        ("gathers the weight", (COLUMN, f"dist.all_gather([torch.empty_like(weight) for _ in range({N})], weight.detach().contiguous())\n    " + COLUMN)),
        ("waits for everybody", (LEAVE_SUM, LEAVE_SUM + "        dist.barrier()\n")),
        ("waits on the way back", (LEAVE_BACK, "dist.barrier()\n        " + LEAVE_BACK)),
    )),
    *(layers("keeps_what_comes_in", *mutant) for mutant in (
        ("sums in place", (LEAVE_CLONE, "total = x")),
        ("changes x", (ROW, ROW + "\n    x.data.zero_()")),
        ("changes the weight", (COLUMN, "y = F.linear(Enter.apply(x), weight)\n    weight.data.mul_(0.5)\n    return y")),
        ("changes the bias", (BIAS, "y = y if bias is None else y + bias\n    None if bias is None else bias.data.mul_(0.5)\n    return y")),
        ("halves the gradient that comes back", (LEAVE_BACK, "half = gradient / 1\n        gradient.mul_(0.5)\n        return half")),
    )),
    layers("keeps_what_comes_in", "sums the gradient in place", (ENTER_CLONE, "whole = gradient"), raises="the gradient that comes back to Enter"),
    *(layers("calls_do_not_mix", *mutant) for mutant in (
        ("a cached output buffer", (LEAVE_CLONE, "if getattr(Leave, 'buffer', torch.empty(0)).shape != x.shape:\n            Leave.buffer = torch.empty_like(x)\n        total = Leave.buffer.copy_(x)")),
        ("the row layer's output in a buffer", (BIAS, "y = y if bias is None else y + bias\n    if getattr(row, 'kept', y[:0]).shape != y.shape:\n        row.kept = torch.empty_like(y)\n    row.kept.copy_(y.detach())\n    return y + (row.kept - y.detach()) if False else _Kept.apply(y)"), ("def column(x, weight):", "class _Kept(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, y):\n        return row.kept.view_as(y)\n\n    @staticmethod\n    def backward(ctx, g):\n        return g\n\n\ndef column(x, weight):")),
        ("the latest weight on the class", (COLUMN, "Enter.latest = x.detach()\n    return _Column.apply(Enter.apply(x), weight)"), ("def column(x, weight):", "class _Column(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x, weight):\n        ctx.save_for_backward(weight)\n        Enter.calls = getattr(Enter, 'calls', 0) + 1\n        ctx.call = Enter.calls\n        return F.linear(x, weight)\n\n    @staticmethod\n    def backward(ctx, g):\n        (weight,) = ctx.saved_tensors\n        rows, latest = g.reshape(-1, g.shape[-1]), Enter.latest.reshape(-1, Enter.latest.shape[-1])\n        return g @ weight * (1 if ctx.call == Enter.calls else 2), rows.T @ latest\n\n\ndef column(x, weight):")),
    )),
    *(layers("ranks_agree", *mutant) for mutant in (
        ("the sum as a constant", (ROW, "part = F.linear(x, weight)\n    total = part.detach().clone()\n    dist.all_reduce(total)\n    y = part + (total - part.detach())")),
        ("the others' sum and its own", ("return total", "return x + (total - x)")),
    )),
    # heads
    *(heads("holds_what_its_queries_use", *mutant) for mutant in (
        ("round and round", (SERVED, "return [head % kv_heads for head in mine]")),
        ("by rank", (SERVED, "return [rank * kv_heads // ranks for head in mine]")),
        ("different heads only", (SERVED, "return sorted({head * kv_heads // heads for head in mine})")),
        ("every rank from 0", (MINE, "mine = range(heads // ranks)")),
        ("dealt out like cards", (MINE, "mine = range(rank, heads, ranks)")),
        ("counted on this rank", (SERVED, "return [head * kv_heads // heads - mine[0] * kv_heads // heads for head in mine]")),
    )),
    heads("holds_what_its_queries_use", "only where they divide", (SERVED, "assert kv_heads % ranks == 0\n    return [head * kv_heads // heads for head in mine]"), raises="Raised"),
    *(heads("sums_the_copies", *mutant) for mutant in (
        ("zeros come back", (TAKEN, "return torch.zeros_like(gradient)")),
        ("always FP32", (ZEROS, "everyone = torch.zeros(kv_heads, *gradient.shape[1:])"), ("everyone[held[dist.get_rank()]] = gradient", "everyone[held[dist.get_rank()]] = gradient.float()")),
        ("half of the ranks count", (ZEROS, ZEROS + "\n    gradient = gradient * (dist.get_rank() % 2 == 0)")),
        ("all heads come back", (TAKEN, "return everyone")),
        ("by place, not by head", ("everyone[held[dist.get_rank()]] = gradient", "everyone[: len(gradient)] = gradient")),
        ("changes what comes in", (TAKEN, "gradient.copy_(everyone[held[dist.get_rank()]])\n    return gradient")),
    )),
    heads("sums_the_copies", "three dimensions", (ZEROS, "everyone = gradient.new_zeros(kv_heads, gradient.shape[1], gradient.shape[2])"), raises="IndexError"),
    heads("sums_the_copies", "not summed", (SUM_HEADS, ""), raises="this rank's copy alone"),
    heads("sums_the_copies", "averaged", (TAKEN, "copies = torch.tensor([sum(head in own for own in held) for head in range(kv_heads)])\n    return (everyone / copies[:, None, None])[held[dist.get_rank()]]"), raises="the mean of the copies"),
    heads("sums_the_copies", "averaged over all ranks", (TAKEN, f"return everyone[held[dist.get_rank()]] / {N}")),
    *(heads("sends_shared_heads_only", *mutant) for mutant in (
        ("always sends", (IF_NONE, "if False:")),
        ("each head by itself", (SUM_HEADS, "    for head in everyone:\n        dist.all_reduce(head)\n")),
        ("in FP64", (ZEROS, "everyone = torch.zeros(kv_heads, *gradient.shape[1:], dtype=torch.float64)"), ("everyone[held[dist.get_rank()]] = gradient", "everyone[held[dist.get_rank()]] = gradient.double()"), (TAKEN, "return everyone[held[dist.get_rank()]].float()")),
        ("more heads than there are", (ZEROS, "everyone = gradient.new_zeros(2 * kv_heads, *gradient.shape[1:])")),
        ("gathered", (SUM_HEADS, f"    parts = [torch.empty_like(everyone) for _ in range({N})]\n    dist.all_gather(parts, everyone)\n    everyone = sum(parts)\n")),
    )),
    # the loss
    *(loss("loss_of_the_whole_vocabulary", *mutant) for mutant in (
        ("targets not moved to this rank's words", (LOCAL, "local = targets")),
        ("the last word of a rank is nobody's", (HERE, "here = (local >= 0) & (local < words - 1)")),
        ("the first word of a rank is nobody's", (HERE, "here = (local > 0) & (local < words)")),
        ("targets on rank 0 only", (HERE, "here = (local >= 0) & (local < words) & (dist.get_rank() == 0)")),
        ("sum of all tokens", (MEAN, "return ((exponentials.log() - picked) * counts).sum()")),
        ("exponentials not summed over ranks", (EXP, "exponentials = shifted.exp().sum(dim=1)")),
        ("the largest of its own words", (MAX, "")),
        ("exponentials added behind autograd", (EXP, "exponentials = shifted.exp().sum(dim=1)\n    others = exponentials.detach().clone()\n    dist.all_reduce(others)\n    exponentials = exponentials * (others / exponentials.detach())")),
        ("the target's logit learns nothing", (PICK, PICK.replace("Leave.apply(", "Leave.apply(").replace("picked.where", "picked.detach().where"))),
        ("a target's logit from each rank", (PICK, "picked = Leave.apply(picked)")),
        ("ranks add up their losses", (MEAN, "return Enter.apply(((exponentials.log() - picked) * counts).sum() / counts.sum())")),
        ("shared out", (MEAN, f"return ((exponentials.log() - picked) * counts).sum() / counts.sum() / {N}")),
        ("log of the mean", (EXP, f"exponentials = Leave.apply(shifted.exp().sum(dim=1)) / {N}")),
        ("the loss in FP32", (MEAN, "return (((exponentials.log() - picked) * counts).sum() / counts.sum()).float()")),
        ("a gradient that knows nothing of the loss's", (MEAN, "mean = ((exponentials.log() - picked) * counts).sum() / counts.sum()\n    mean.register_hook(torch.ones_like)\n    return mean * 1"), ),
        ("a loss of one dimension", (MEAN, "return ((exponentials.log() - picked) * counts).sum()[None] / counts.sum()")),
    )),
    loss("leaves_out_what_does_not_count", "divided by all tokens", (MEAN, "return ((exponentials.log() - picked) * counts).sum() / len(targets)"), raises="divided by all tokens"),
    *(loss("leaves_out_what_does_not_count", *mutant) for mutant in (
        ("every token counts", (COUNTS, "counts = targets >= -100")),
        ("no target, but a softmax", (MEAN, "return ((exponentials.log() - picked).sum()) / counts.sum()")),
        ("a target of 0 does not count, either", (COUNTS, "counts = targets > 0")),
        ("padding is the word 0", (WORDS, WORDS + "    targets = targets.clamp(min=0)\n")),
    )),
    *(loss("bears_large_logits", *mutant) for mutant in (
        ("nothing subtracted", (SHIFT, "shifted = logits")),
        ("a fixed number subtracted", (SHIFT, "shifted = logits - 50")),
        ("clamped", (SHIFT, "shifted = (logits - largest[:, None] * 0).clamp(-80, 80)")),
        ("the mean subtracted", (MAX, f"    largest = logits.detach().mean(dim=1)\n    dist.all_reduce(largest)\n    largest = largest / {N}\n")),
        ("the smallest subtracted", (MAX, "    largest = logits.detach().amin(dim=1)\n    dist.all_reduce(largest, op=dist.ReduceOp.MIN)\n")),
        ("the logarithm of a probability", (MEAN, "return (-(picked.exp() / exponentials).log() * counts).sum() / counts.sum()")),
        ("a small number in the logarithm", ("exponentials.log()", "(exponentials * 1e-42 + 1e-38).log()")),
    )),
    *(loss("sends_three_numbers_a_token", *mutant) for mutant in (
        ("gathers the logits", (WORDS, WORDS + f"    dist.all_gather([torch.empty_like(logits) for _ in range({N})], logits.detach().contiguous())\n")),
        ("the gradient is summed as well", (MEAN, "return Enter.apply(((exponentials.log() - picked) * counts).sum() / counts.sum()) / dist.get_world_size()")),
        ("in FP64", (EXP, "exponentials = Leave.apply(shifted.exp().sum(dim=1).double()).to(logits.dtype)")),
        ("the mean once more", (MEAN, "counted = counts.sum().float()\n    dist.all_reduce(counted)\n    return ((exponentials.log() - picked) * counts).sum() / counts.sum()")),
        ("gathers the largest", (MAX, f"    parts = [torch.empty_like(largest) for _ in range({N})]\n    dist.all_gather(parts, largest)\n    largest = torch.stack(parts).amax(dim=0)\n")),
    )),
    *(loss("keeps_to_its_words", *mutant) for mutant in (
        ("padded to the whole vocabulary", (EXP, f"exponentials = Leave.apply(F.pad(shifted, (0, words * ({N} - 1)), value=-1e9).exp().sum(dim=1))")),
        ("one-hot over the whole vocabulary", (PICK, PICK + f"\n    F.one_hot(targets.clamp(min=0), words * {N})")),
        ("targets shifted in place", (WORDS, WORDS + "    counts = targets != -100\n"), (LOCAL, "local = targets.sub_(dist.get_rank() * words)"), ("    counts = targets != -100\n    return", "    return")),
        ("exponentials in place", (MEAN, "logits.data.sub_(largest[:, None])\n    " + MEAN)),
    )),
    # the sequence
    *(sequence("gathers_and_scatters", *mutant) for mutant in (
        ("gathered along the rows", (GATHERED, "return torch.cat(tokens, dim=0).view(x.shape[0], -1, *x.shape[2:])")),
        ("this rank first", (GATHERED, "return torch.cat([mine, *(t for i, t in enumerate(tokens) if i != dist.get_rank())], dim=1)")),
        ("backwards", (GATHERED, "return torch.cat(tokens[::-1], dim=1)")),
        ("the mean comes back", ("return added", f"return added / {N}")),
        ("scatter: another rank's tokens", (MIRROR_FORWARD, "return Gather.backward(ctx, x.roll(1, dims=1))")),
        ("scatter: the gradient is shared out", (MIRROR_BACK, f"return Gather.forward(ctx, gradient) / {N}")),
        ("scatter: the gradient of this rank's tokens only", (MIRROR_BACK, f"return torch.cat([gradient if i == dist.get_rank() else torch.zeros_like(gradient) for i in range({N})], dim=1)")),
    )),
    sequence("gathers_and_scatters", "its own tokens' gradient, not summed", (SCATTERED, "        added = parts[dist.get_rank()]\n"), raises="was not added"),
    *(sequence("gathers_and_scatters", *mutant, raises="Raised") for mutant in (
        ("three dimensions only", (CONTIGUOUS, "B, T, C = x.shape\n        mine = x.contiguous()")),
    )),
    sequence("takes_any_layout", "as it lies", (CONTIGUOUS, "mine = x"), raises="not contiguous"),
    sequence("takes_any_layout", "the gradient's parts as they lie", (PARTS, "parts = list(gradient.chunk(dist.get_world_size(), dim=1))"), raises="not contiguous"),
    sequence("takes_any_layout", "read in the order of memory", (CONTIGUOUS, "mine = x.contiguous() if x.is_contiguous() else torch.as_strided(x, x.shape, torch.empty(x.shape).stride()).clone()")),
    *(sequence("takes_any_layout", *mutant) for mutant in (
        ("x is used up", (GATHERED, "y = torch.cat(tokens, dim=1)\n        x.zero_()\n        return y")),
        ("the gradient is used up", ("return added", "gradient.zero_()\n        return added")),
    )),
    *(sequence("sends_half_an_all_reduce", *mutant) for mutant in (
        ("an all-reduce, and its own part of it", (SCATTERED, BY_ALL_REDUCE)),
        ("an all-reduce of zeros for a gather", (GATHERED, f"y = torch.cat([mine if i == dist.get_rank() else torch.zeros_like(mine) for i in range({N})], dim=1)\n        dist.all_reduce(y)\n        return y")),
        ("row by row", (SCATTERED, "        for i in range(len(added)):\n            dist.reduce_scatter(added[i], [part[i] for part in parts])\n")),
        ("sums in FP64", (SCATTERED, "        wide = added.double()\n        dist.reduce_scatter(wide, [part.double() for part in parts])\n        added = wide.to(added.dtype)\n")),
        ("the result stays in FP32", (GATHERED, "return torch.cat(tokens, dim=1).float()")),
    )),
]  # fmt: skip

RIGHT = {
    "one function for all of a layer": """
import torch
import torch.distributed as dist
import torch.nn.functional as F


def summed(t, op=dist.ReduceOp.SUM):
    t = t.detach().clone().contiguous()
    dist.all_reduce(t, op)
    return t


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        return summed(g)


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return summed(x)

    @staticmethod
    def backward(ctx, g):
        return g


class Column(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x.matmul(weight.t())

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        dx = summed(dy @ weight) if ctx.needs_input_grad[0] else None
        return dx, dy.reshape(-1, dy.shape[-1]).T @ x.reshape(-1, x.shape[-1])


class Row(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        y = x.matmul(weight.t())
        dist.all_reduce(y)
        return y if bias is None else y + bias

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        rows = dy.reshape(-1, dy.shape[-1])
        return dy @ weight, rows.T @ x.reshape(-1, x.shape[-1]), rows.sum(0) if ctx.needs_input_grad[2] else None


def column(x, weight):
    return Column.apply(x, weight)


def row(x, weight, bias):
    return Row.apply(x, weight, bias)


def kv_heads_of(rank, ranks, heads, kv_heads):
    group, each = heads // kv_heads, heads // ranks
    return [(rank * each + i) // group for i in range(each)]


def sum_shared(gradient, heads, kv_heads):
    n = dist.get_world_size()
    owners = [set(kv_heads_of(r, n, heads, kv_heads)) for r in range(n)]
    if not any(a & b for i, a in enumerate(owners) for b in owners[:i]):
        return gradient.clone()
    at = torch.zeros(len(gradient), kv_heads)
    for i, head in enumerate(sorted(owners[dist.get_rank()])):
        at[i, head] = 1
    return torch.einsum("hk,k...->h...", at, summed(torch.einsum("hk,h...->k...", at, gradient)))


def cross_entropy(logits, targets):
    return Softmax.apply(logits, targets)


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, targets):
        n, words = logits.shape
        mine = targets // words == dist.get_rank()
        at = targets % words
        shifted = logits - summed(logits.max(1).values, dist.ReduceOp.MAX)[:, None]
        both = torch.stack([shifted.exp().sum(1), shifted[torch.arange(n), at] * mine])
        total, picked = summed(both)
        counts = targets.ne(-100)
        p = shifted.exp() / total[:, None]
        p[torch.arange(n), at] -= mine.to(p.dtype)
        ctx.save_for_backward(p * (counts / counts.sum())[:, None])
        return ((total.log() - picked) * counts).sum() / counts.sum()

    @staticmethod
    def backward(ctx, g):
        return ctx.saved_tensors[0] * g, None


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        n = dist.get_world_size()
        y = torch.empty(n, *x.shape, dtype=x.dtype, device=x.device)
        dist.all_gather(list(y), x.clone(memory_format=torch.contiguous_format))
        return y.transpose(0, 1).flatten(1, 2)

    @staticmethod
    def backward(ctx, g):
        parts = list(g.unflatten(1, (dist.get_world_size(), -1)).transpose(0, 1).contiguous())
        mine = torch.empty_like(parts[0])
        dist.reduce_scatter(mine, parts)
        return mine


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return Gather.backward(ctx, x)

    @staticmethod
    def backward(ctx, g):
        return Gather.forward(ctx, g)
""",
    "functional collectives": """
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed import _functional_collectives as funcol


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return funcol.all_reduce(g.contiguous(), "sum", dist.group.WORLD).clone()


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return funcol.all_reduce(x.contiguous(), "sum", dist.group.WORLD).clone()

    @staticmethod
    def backward(ctx, g):
        return g.clone()


def column(x, weight):
    return torch.matmul(Enter.apply(x), weight.mT)


def row(x, weight, bias):
    y = Leave.apply((x.unsqueeze(-2) * weight).sum(-1))
    if bias is not None:
        y = torch.add(y, bias)
    return y


def kv_heads_of(rank, ranks, heads, kv_heads):
    serving = [kv for kv in range(kv_heads) for _ in range(heads // kv_heads)]
    return [serving[head] for head in range(heads) if head * ranks // heads == rank]


def sum_shared(gradient, heads, kv_heads):
    n, rank = dist.get_world_size(), dist.get_rank()
    holders = {kv: [r for r in range(n) if kv in kv_heads_of(r, n, heads, kv_heads)] for kv in range(kv_heads)}
    if all(len(ranks) == 1 for ranks in holders.values()):
        return gradient
    shared = [kv for kv, ranks in holders.items() if len(ranks) > 1]
    mine = [kv for kv, ranks in holders.items() if rank in ranks]
    zero = torch.zeros_like(gradient[0])
    message = torch.stack([gradient[mine.index(kv)] if kv in mine else zero for kv in shared])
    dist.all_reduce(message)
    return torch.stack([message[shared.index(kv)] if kv in shared else gradient[i] for i, kv in enumerate(mine)])


def cross_entropy(logits, targets):
    top = logits.detach().max(dim=1).values.clone()
    dist.all_reduce(top, op=dist.ReduceOp.MAX)
    log_sum = (logits - top.unsqueeze(1)).logsumexp(dim=1)
    log_sum = Leave.apply(log_sum.exp()).log() + top
    first = dist.get_rank() * logits.size(1)
    mask = torch.arange(first, first + logits.size(1)) == targets.unsqueeze(1)
    wanted = Leave.apply(torch.where(mask, logits, logits.new_zeros(())).sum(1))
    keep = targets >= 0
    return (log_sum - wanted)[keep].mean()


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return funcol.all_gather_tensor(x.contiguous(), 1, dist.group.WORLD).clone()

    @staticmethod
    def backward(ctx, g):
        return funcol.reduce_scatter_tensor(g.contiguous(), "sum", 1, dist.group.WORLD).clone()


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return funcol.reduce_scatter_tensor(x.contiguous(), "sum", 1, dist.group.WORLD).clone()

    @staticmethod
    def backward(ctx, g):
        return funcol.all_gather_tensor(g.contiguous(), 1, dist.group.WORLD).clone()
""",
}
