# torch.autograd.grad and a foreach sum

import torch


def accumulated_step(model, optimizer, loss_fn, x, y, micro_batch):
    parameters = [p for p in model.parameters() if p.requires_grad]
    sums = [torch.zeros_like(p) for p in parameters]
    losses = []
    for xs, ys in zip(torch.split(x, micro_batch), torch.split(y, micro_batch)):
        loss = loss_fn(model(xs), ys)
        torch._foreach_add_(sums, torch.autograd.grad(loss, parameters), alpha=len(xs))
        losses.append(loss.item() * len(xs))
    torch._foreach_div_(sums, len(x))
    for p, g in zip(parameters, sums):
        p.grad = g
    optimizer.step()
    optimizer.zero_grad()
    return sum(losses) / len(x)
