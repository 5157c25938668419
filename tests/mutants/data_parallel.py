"""Wrong and right answers for the practice task of data parallel."""

from . import Mutant

AVERAGE, JOINT = "data_parallel.average", "gradient_of_the_joint_batch"


def one(name: str, old: str, new: str, raises: str = "") -> Mutant:
    return Mutant(name, AVERAGE, JOINT, ((old, new),), raises)


MUTANTS = [
    one("sum of gradients", "p.grad *= rows / total.item()", "p.grad *= 1"),
    one("mean of means", "p.grad *= rows / total.item()", "p.grad /= dist.get_world_size()"),
    one("divided twice", "rows / total.item()", "rows / total.item() / dist.get_world_size()"),
    one("rows of this rank only", "    dist.all_reduce(total)\n", "    total += 0.25\n"),
    one("weighed by rows, not divided", "rows / total.item()", "rows"),
    one("no exchange", "        dist.all_reduce(p.grad)\n", ""),
    one("frozen parameters get gradients", "[p for p in model.parameters() if p.requires_grad]", "list(model.parameters())"),
    one("one value for all", "        dist.all_reduce(p.grad)\n", "        dist.broadcast(p.grad, src=0)\n"),
    one("averaged in FP16", "        dist.all_reduce(p.grad)\n",
        "        low = p.grad.to(torch.float16)\n        dist.all_reduce(low)\n        p.grad.copy_(low)\n"),
    one("sends everything to everybody", "        dist.all_reduce(p.grad)\n",
        "        parts = [torch.empty_like(p.grad) for _ in range(4 * dist.get_world_size())]\n"
        "        for i in range(4):\n"
        "            dist.all_gather(parts[i * dist.get_world_size() : (i + 1) * dist.get_world_size()], p.grad)\n"
        "        p.grad = sum(parts) / 4\n"),
    one("a rank without rows stays away", "    trained =", "    if not rows:\n        return\n    trained =", "not come back"),
    one("a rank without rows keeps None", "            p.grad = torch.zeros_like(p)\n",
        "            dist.all_reduce(torch.zeros_like(p))\n            continue\n"),
]  # fmt: skip

RIGHT = {
    "one flat message": """
import torch
import torch.distributed as dist


def average_gradients(model, rows):
    wanted = [p for p in model.parameters() if p.requires_grad]
    pieces = [(torch.zeros_like(p) if p.grad is None else p.grad * rows).flatten() for p in wanted]
    flat = torch.cat([*pieces, pieces[0].new_tensor([rows])])
    dist.all_reduce(flat)
    flat = flat[:-1] / flat[-1]
    for p, g in zip(wanted, flat.split([p.numel() for p in wanted])):
        p.grad = g.view_as(p).clone()
""",
    "gather and add": """
import torch
import torch.distributed as dist


def average_gradients(model, rows):
    n = dist.get_world_size()
    counts = [torch.zeros(1) for _ in range(n)]
    dist.all_gather(counts, torch.tensor([float(rows)]))
    total = sum(c.item() for c in counts)
    for p in model.parameters():
        if p.requires_grad:
            mine = (p.grad if p.grad is not None else torch.zeros_like(p.data)) * (rows / total)
            dist.all_reduce(mine, op=dist.ReduceOp.SUM)
            p.grad = mine
""",
}
