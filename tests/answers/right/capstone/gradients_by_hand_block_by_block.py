# gradients by hand, block by block

import torch
import torch.nn.functional as F
import torch.utils.checkpoint


def accumulate(model, x, y, micro):
    for i in range(0, len(x), micro):
        losses = F.cross_entropy(model(x[i : i + micro]), y[i : i + micro], reduction="none")
        losses.div(len(x)).sum().backward()


def checkpoint_blocks(model):
    for block in model.blocks:
        plain = block.forward
        block.forward = lambda *x, plain=plain: torch.utils.checkpoint.checkpoint(plain, *x, use_reentrant=False)


def signum_step(means, lr):
    for p in means:
        p.data -= lr * torch.sign(means[p])


def fold(means):
    def add(p):
        means[p].add_(0.1 * p.grad)
        p.grad = None

    for p in means:
        means[p] *= 0.9
    return [p.register_post_accumulate_grad_hook(add) for p in means]


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


def prepare(model):
    model.to(torch.bfloat16)
    state = {}
    for p in model.parameters():
        state[p] = torch.zeros_like(p)
        p.register_post_accumulate_grad_hook(lambda p: gather(state[p], p))
    return state


def gather(mean, p):
    for part, piece in zip(mean.view(-1).split(500), p.grad.reshape(-1).split(500)):
        add(part, 0.1 * piece.float())
    p.grad = None


@torch.no_grad()
def add(target, change):
    bits = (target.float() + change).view(torch.int32)
    noise = torch.randint(0, 65536, bits.shape, device=bits.device, dtype=torch.int32)
    target.copy_(((bits + noise) & -65536).view(torch.float32))


def update(model, state, x, y, progress):
    for mean in state.values():
        mean *= 0.9
    for start in range(0, len(x), 3):
        pixels = torch.tensor(x[start : start + 3]).to(next(iter(state)))
        target = torch.tensor(y[start : start + 3], device=pixels.device)
        (F.cross_entropy(model(pixels).float(), target, reduction="sum") / len(x)).backward()
    for p, mean in state.items():
        add(p, -4e-3 * min(1.0, 0.3 + 3 * progress) * (1 - progress) * mean.sign().float())
