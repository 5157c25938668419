"""Wrong and right answers for the practice task of tensor parallel."""

from . import Mutant

ROW, SUMS = "tensor_parallel.row", "sums_where_the_paths_meet"
CALL = "SumOverRanks.apply(F.linear(x, weight)) + bias"


def one(name: str, old: str, new: str, raises: str = "") -> Mutant:
    return Mutant(name, ROW, SUMS, ((old, new),), raises)


MUTANTS = [
    one("no sum", "            dist.all_reduce(total)\n", ""),
    one("bias on each rank", CALL, "SumOverRanks.apply(F.linear(x, weight, bias))"),
    one("bias of rank 0 only", CALL, "SumOverRanks.apply(F.linear(x, weight, bias if dist.get_rank() == 0 else None))"),
    one("bias shared out, gradient is not", CALL, "SumOverRanks.apply(F.linear(x, weight, bias / dist.get_world_size()))"),
    one("bias left out", CALL, "SumOverRanks.apply(F.linear(x, weight)) + 0 * bias"),
    one("mean for sum", "return total", "return total / dist.get_world_size()"),
    one("summed backward, too", "return gradient  # whole on every rank already",
        "gradient = gradient.clone()\n            dist.all_reduce(gradient)\n            return gradient"),
    one("gradient shared out", "return gradient  # whole on every rank already", "return gradient / dist.get_world_size()"),
    one("no gradient for what came before", CALL, "SumOverRanks.apply(F.linear(x.detach(), weight)) + bias"),
    one("gathered without gradient", "    return " + CALL,
        "    partial = F.linear(x, weight)\n    parts = [torch.empty_like(partial) for _ in range(dist.get_world_size())]\n"
        "    dist.all_gather(parts, partial)\n    return sum(parts) + bias"),
    one("sent twice", "            dist.all_reduce(total)\n", "            dist.all_reduce(total.clone())\n            dist.all_reduce(total)\n"),
    one("gathers x and weight", "    return " + CALL,
        "    dist.all_gather([torch.empty_like(weight) for _ in range(dist.get_world_size())], weight.detach().contiguous())\n    return " + CALL),
    one("changes x", "    return " + CALL, "    y = " + CALL + "\n    x.data.zero_()\n    return y"),
    one("all-reduce without a gradient of its own", "    return " + CALL,
        "    y = F.linear(x, weight)\n    dist.all_reduce(y)\n    return y + bias"),
    one("sent in two halves", "            dist.all_reduce(total)\n",
        "            for half in total.chunk(2):\n                dist.all_reduce(half)\n"),
    one("rank 0 alone has the sum", "dist.all_reduce(total)", "dist.reduce(total, dst=0)"),
]  # fmt: skip

RIGHT = {
    "the sum as a constant": """
import torch
import torch.distributed as dist


def row_parallel(x, weight, bias):
    partial = x @ weight.T
    others = partial.detach().clone()
    dist.all_reduce(others)
    return partial + (others - partial.detach()) + bias
""",
    "one function for all of it": """
import torch
import torch.distributed as dist


class RowParallel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        y = x.matmul(weight.t())
        dist.all_reduce(y)
        return y + bias

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        rows = dy.reshape(-1, dy.shape[-1])
        return dy @ weight, rows.T @ x.reshape(-1, x.shape[-1]), rows.sum(0)


def row_parallel(x, weight, bias):
    return RowParallel.apply(x, weight, bias)
""",
}
