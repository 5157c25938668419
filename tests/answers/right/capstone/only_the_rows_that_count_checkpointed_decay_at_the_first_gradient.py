# only the rows that count, checkpointed, decay at the first gradient

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch.utils.checkpoint import checkpoint


def accumulate(model, x, y, micro):
    for i in range(0, len(x), micro):
        xs, ys = x[i : i + micro], y[i : i + micro]
        (F.cross_entropy(model(xs), ys) * (len(xs) / len(x))).backward()


def checkpoint_blocks(model):
    for block in model.blocks:
        plain = block.forward
        block.forward = lambda *x, plain=plain: torch.utils.checkpoint.checkpoint(plain, *x, use_reentrant=False)


def signum_step(means, lr):
    for p in means:
        p.data -= lr * torch.sign(means[p])


def fold(means):
    def add(p):
        means[p] += 0.1 * p.grad
        p.grad = None

    torch._foreach_mul_(list(means.values()), 0.9)
    return [p.register_post_accumulate_grad_hook(add) for p in means]


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


class Recipe:
    def __init__(self, model):
        self.parameters = list(model.to(torch.bfloat16).parameters())
        self.means = [torch.zeros_like(p) for p in self.parameters]

    @torch.no_grad()
    def add(self, target, change):
        bits = target.float().add_(change).view(torch.int32)
        bits += torch.randint_like(bits, 65536)
        target.copy_(bits.bitwise_and_(-65536).view(torch.float32))

    def step(self, rate):
        for p, mean in zip(self.parameters, self.means):
            self.add(p, -rate * torch.sign(mean).float())


def prepare(model):
    for block in model.blocks:
        forward = block.forward
        block.forward = lambda x, forward=forward: checkpoint(forward, x, use_reentrant=False, preserve_rng_state=False)
    return Recipe(model)


def update(model, state, x, y, progress):
    for mean in state.means:
        mean.mul_(0.9)
    for i in range(0, len(x), 8):
        xs, ys = torch.from_numpy(x[i : i + 8]), torch.from_numpy(y[i : i + 8])
        device = state.parameters[0].device
        loss = F.cross_entropy(model(xs.to(device).bfloat16()).float(), ys.to(device), reduction="none").sum() / len(x)
        means = dict(zip(state.parameters, state.means))

        def fold(p):
            for part, piece in zip(means[p].view(-1).split(1000), p.grad.reshape(-1).split(1000)):
                state.add(part, 0.1 * piece.float())
            p.grad = None

        hooks = [p.register_post_accumulate_grad_hook(fold) for p in means]
        loss.backward()
        for hook in hooks:
            hook.remove()
    state.step(5e-3 * min(1.0, 0.2 + 4 * progress) * (1 - progress))
