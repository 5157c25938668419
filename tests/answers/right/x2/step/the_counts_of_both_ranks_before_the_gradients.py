# the counts of both ranks before the gradients

import torch


def accumulated_step(model, optimizer, loss_fn, x, y, micro_batch, all_reduce):
    optimizer.zero_grad(set_to_none=False)
    losses, counts = [], []
    for xs, ys in zip(x.split(micro_batch), y.split(micro_batch), strict=True):
        total, count = loss_fn(model(xs), ys)
        total.backward()
        losses.append(float(total.detach()))
        counts.append(count)
    counted = torch.stack(counts).sum()
    all_reduce(counted)
    loss = torch.tensor(sum(losses), dtype=torch.float64)
    all_reduce(loss)
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        all_reduce(gradient)
        parameter.grad = gradient / counted
    optimizer.step()
    return float(loss) / float(counted)
