"""Wrong and right answers for the practice task of lab 15."""

from . import Mutant

LEAN, SAME = "lab15.lean", "same_update_within_the_room"


def one(name: str, *edits: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, LEAN, SAME, edits, raises)


MUTANTS = [
    one("the whole batch at once", ("x.split(8), y.split(8)", "x.split(130), y.split(130)")),
    one("pieces too large", ("x.split(8), y.split(8)", "x.split(65), y.split(65)")),
    one("gradients held until the end", ("        p.grad = None\n", ""), ("    with torch.no_grad():\n        for p", "    for p in model.parameters():\n        p.grad = None\n    with torch.no_grad():\n        for p")),
    one("gradients never freed", ("        p.grad = None\n", "        if means[p] is None:\n            p.grad = None\n")),
    one("mean of each piece", ('reduction="sum") / len(x)', 'reduction="mean")')),
    one("pieces weighed alike", ('reduction="sum") / len(x)', 'reduction="mean") / len(x.split(8))')),
    one("faded for each piece", ("        (F.cross", "        for mean in means.values():\n            mean.mul_(0.9)\n        (F.cross")),
    one("not faded", ("mean.mul_(0.9)", "mean.mul_(1.0)")),
    one("the whole gradient", ("alpha=0.1", "alpha=1.0")),
    one("hooks left behind", ("        hook.remove()", "        pass"), raises="NoneType"),
    one("hooks left behind, with care", ("        hook.remove()", "        pass"), ("def take(p):\n", "def take(p):\n        if p.grad is None:\n            return\n")),
    one("the last piece forgotten", ("zip(x.split(8), y.split(8), strict=True)", "list(zip(x.split(8), y.split(8), strict=True))[:-1]")),
    one("a step for each piece", ("        (F.cross", "        with torch.no_grad():\n            for p, mean in means.items():\n                p.sub_(lr * mean.sign())\n        (F.cross")),
    one("uphill", ("alpha=-lr", "alpha=lr")),
    one("no sign", ("means[p].sign()", "means[p]")),
    one("weights left alone", ("p.add_(means[p].sign(), alpha=-lr)", "pass")),
    one("means replaced", ("mean.mul_(0.9)", "means[p] = mean * 0.9"), ("for mean in means.values()", "for p, mean in list(means.items())")),
    one("half of the weights", ("for p in model.parameters():\n            p.add_", "for p in list(model.parameters())[::2]:\n            p.add_")),
]  # fmt: skip

RIGHT = {
    "gradients by hand, block by block": """
import torch
import torch.nn.functional as F


def lean_update(model, means, x, y, lr):
    for mean in means.values():
        mean.mul_(0.9)
    for i in range(0, len(x), 5):
        inputs = [x[i : i + 5]]
        with torch.no_grad():
            for layer in model:
                inputs.append(layer(inputs[-1]))
        logits = inputs.pop().requires_grad_()
        grad = torch.autograd.grad(F.cross_entropy(logits, y[i : i + 5], reduction="sum") / len(x), logits)[0]
        for layer in reversed(model):
            start = inputs.pop().detach().requires_grad_()
            grad, *pieces = torch.autograd.grad(layer(start), [start, *layer.parameters()], grad)
            for p, piece in zip(layer.parameters(), pieces):
                means[p] += 0.1 * piece
    with torch.no_grad():
        for p, mean in means.items():
            p -= lr * mean.sign()
""",
    "checkpointed, larger pieces": """
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


def lean_update(model, means, x, y, lr):
    first = set(model.parameters())

    def take(p):
        if p in first:
            means[p].mul_(0.9)
            first.remove(p)
        means[p].add_(p.grad, alpha=0.1)
        p.grad = None

    hooks = [p.register_post_accumulate_grad_hook(take) for p in model.parameters()]
    for xs, ys in zip(torch.tensor_split(x, 11), torch.tensor_split(y, 11)):
        for layer in model[:-1]:
            xs = checkpoint(layer, xs, use_reentrant=False)
        F.cross_entropy(model[-1](xs), ys).mul(len(ys) / len(y)).backward()
    for hook in hooks:
        hook.remove()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p - lr * means[p].sign())
""",
}
