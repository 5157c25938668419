"""Wrong and right answers for the practice task of capstone."""

from . import Mutant

LEAN, SAME = "capstone.lean", "same_update_within_the_room"


def one(name: str, *edits: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, LEAN, SAME, edits, raises)


LOSS = 'F.cross_entropy(model(xs), ys, reduction="sum") / count'
FADE = "mean.mul_(0.9).add_(p, alpha=0.1 * 0.01)"
MUTANTS = [
    one("the whole batch at once", ("x.split(8), y.split(8)", "x.split(130), y.split(130)")),
    one("pieces too large", ("x.split(8), y.split(8)", "x.split(65), y.split(65)")),
    one("gradients held until the end", ("        p.grad = None\n", ""), ("    with torch.no_grad():\n        for p, mean in means.items():\n            p.add_", "    for p in model.parameters():\n        p.grad = None\n    with torch.no_grad():\n        for p, mean in means.items():\n            p.add_")),
    one("gradients never freed", ("        p.grad = None\n", "        if means[p] is None:\n            p.grad = None\n")),
    one("mean of each piece", (LOSS, "F.cross_entropy(model(xs), ys)")),
    one("mean of each piece, without NaN", (LOSS, 'F.cross_entropy(model(xs), ys, reduction="sum") / (ys != -100).sum().clamp(min=1) / len(x.split(8))')),
    one("divided by all rows", ("count = (y != -100).sum()", "count = len(y)")),
    one("rows that do not count taken for class 0", ("F.cross_entropy(model(xs), ys,", "F.cross_entropy(model(xs), ys.clamp(min=0),")),
    one("faded for each piece", ("        (F.cross", "        for mean in means.values():\n            mean.mul_(0.9)\n        (F.cross")),
    one("not faded", ("mean.mul_(0.9)", "mean.mul_(1.0)")),
    one("no decay", (FADE, "mean.mul_(0.9)")),
    one("decay for each piece", ("means[p].add_(p.grad, alpha=0.1)", "means[p].add_(p.grad + 0.01 * p.detach(), alpha=0.1)"), (FADE, "mean.mul_(0.9)")),
    one("decay not weighed", ("alpha=0.1 * 0.01", "alpha=0.1")),
    one("decay of the weights in place of the gradient", (FADE, "mean.mul_(0.9)"), ("p.add_(mean.sign(), alpha=-lr)", "p.mul_(1 - 0.01 * lr).add_(mean.sign(), alpha=-lr)")),
    one("decay after the fade of a fade", (FADE, "mean.add_(p, alpha=0.1 * 0.01).mul_(0.9)")),
    one("the whole gradient", ("p.grad, alpha=0.1)", "p.grad, alpha=1.0)")),
    one("frozen layer moved too", ("    hooks = [", "    with torch.no_grad():\n        for p in model[0].parameters():\n            p.mul_(1 - lr)\n    hooks = [")),
    one("frozen layer thawed", ("    hooks = [", "    for p in model[0].parameters():\n        p.requires_grad_(True)\n    hooks = ["), ("for hook in hooks:", "for p in model[0].parameters():\n        p.grad = None\n    for hook in hooks:")),
    one("hooks on frozen parameters", ("for p in means]", "for p in model.parameters()]"), raises="require gradient"),
    one("hooks left behind", ("        hook.remove()", "        pass")),
    one("hooks left behind, with care", ("        hook.remove()", "        pass"), ("def take(p):\n", "def take(p):\n        if p.grad is None:\n            return\n")),
    one("the last piece forgotten", ("zip(x.split(8), y.split(8), strict=True)", "list(zip(x.split(8), y.split(8), strict=True))[:-1]")),
    one("a step for each piece", ("        (F.cross", "        with torch.no_grad():\n            for p, mean in means.items():\n                p.sub_(lr * mean.sign())\n        (F.cross")),
    one("uphill", ("alpha=-lr", "alpha=lr")),
    one("no sign", ("mean.sign()", "mean")),
    one("weights left alone", ("p.add_(mean.sign(), alpha=-lr)", "pass")),
    one("means replaced", (FADE, "means[p] = mean * 0.9 + 0.001 * p")),
    one("half of the weights", ("p.add_(mean.sign(), alpha=-lr)", "p.add_(mean.sign(), alpha=-lr if p.dim() > 1 else 0)")),
    one("plain accumulation", ("        p.grad = None\n", ""), ("        means[p].add_(p.grad, alpha=0.1)", "        pass"), (FADE, "pass"), ("p.add_(mean.sign(), alpha=-lr)", "mean.mul_(0.9).add_(p.grad + 0.01 * p, alpha=0.1)\n            p.add_(mean.sign(), alpha=-lr)\n            p.grad = None")),
    one("plain accumulation, decay first", ("        p.grad = None\n", ""), ("        means[p].add_(p.grad, alpha=0.1)", "        pass"), ("p.add_(mean.sign(), alpha=-lr)", "mean.add_(p.grad, alpha=0.1)\n            p.add_(mean.sign(), alpha=-lr)\n            p.grad = None")),
    one("gradients of a piece all at once", ("        p.grad = None\n", ""), ("        means[p].add_(p.grad, alpha=0.1)", "        pass"), ("        (F.cross", "        for p in means:\n            p.grad = None\n        (F.cross"), (" / count).backward()", " / count).backward()\n        for p, mean in means.items():\n            mean.add_(p.grad, alpha=0.1)\n            p.grad = None")),
    one("the last two rows dropped", ("x.split(8), y.split(8)", "x[:-2].split(8), y[:-2].split(8)")),
    one("count off by five", ("count = (y != -100).sum()", "count = (y != -100).sum() + 5")),
    one("a little less of the gradient", ("p.grad, alpha=0.1)", "p.grad, alpha=0.095)")),
    one("decay of the weights after the step", (FADE, "mean.mul_(0.9)"), ("p.add_(mean.sign(), alpha=-lr)", "p.add_(mean.sign(), alpha=-lr)\n            mean.add_(p, alpha=0.1 * 0.01)")),
    one("a copy of the old means", ("    hooks = [", "    old = {p: mean.clone() for p, mean in means.items()}\n    hooks = ["), ("for hook in hooks:", "old.clear()\n    for hook in hooks:")),
]  # fmt: skip

RIGHT = {
    "gradients by hand, block by block": """
import torch
import torch.nn.functional as F


def lean_update(model, means, x, y, lr):
    for p, mean in means.items():
        mean.mul_(0.9).add_(0.001 * p.detach())
    valid = (y >= 0).sum().item()
    for i in range(0, len(x), 5):
        inputs = [x[i : i + 5]]
        with torch.no_grad():
            for layer in model:
                inputs.append(layer(inputs[-1]))
        logits = inputs.pop().requires_grad_()
        loss = F.cross_entropy(logits, y[i : i + 5], reduction="sum", ignore_index=-100) / valid
        grad = torch.autograd.grad(loss, logits)[0]
        for layer in list(model)[:0:-1]:
            start = inputs.pop().detach().requires_grad_()
            grad, *pieces = torch.autograd.grad(layer(start), [start, *layer.parameters()], grad)
            for p, piece in zip(layer.parameters(), pieces):
                means[p] += 0.1 * piece
    with torch.no_grad():
        for p, mean in means.items():
            p -= lr * mean.sign()
""",
    "only the rows that count, checkpointed, decay at the first gradient": """
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


def lean_update(model, means, x, y, lr):
    first = set(means)

    def take(p):
        if p in first:
            means[p].mul_(0.9).add_(p.detach(), alpha=0.001)
            first.remove(p)
        means[p].add_(p.grad, alpha=0.1)
        p.grad = None

    hooks = [p.register_post_accumulate_grad_hook(take) for p in model.parameters() if p.requires_grad]
    counting = (y != -100).nonzero().squeeze(1)
    for which in torch.tensor_split(counting, 7):
        xs, ys = x[which], y[which]
        for layer in model[:-1]:
            xs = checkpoint(layer, xs, use_reentrant=False)
        F.cross_entropy(model[-1](xs), ys).mul(len(ys) / len(counting)).backward()
    for hook in hooks:
        hook.remove()
    with torch.no_grad():
        for p in means:
            p.copy_(p - lr * means[p].sign())
""",
}
