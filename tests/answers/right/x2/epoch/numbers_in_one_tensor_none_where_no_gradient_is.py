# numbers in one tensor, None where no gradient is

import torch


def train_epoch(model, optimizer, scheduler, loss_fn, loader, accumulate, state=None, stop_after=None):
    params = list(model.parameters())
    if state is None:
        state = {"numbers": torch.zeros(3, dtype=torch.float64), "grads": [None] * len(params)}
    numbers = state["numbers"].clone()  # micro-batches, rows, loss
    for p, g in zip(params, state["grads"], strict=True):
        p.grad = g.clone() if g is not None else None
    losses = []
    for taken, (x, y) in enumerate(loader(int(numbers[0])), 1):
        loss = loss_fn(model(x), y) * x.shape[0]
        loss.backward()
        numbers += torch.tensor([1.0, x.shape[0], loss.item()], dtype=torch.float64)
        if numbers[0] % accumulate == 0:
            finish(params, numbers, optimizer, scheduler, losses)
        if taken == stop_after:
            grads = [None if p.grad is None else p.grad.clone() for p in params]
            return losses, {"numbers": numbers, "grads": grads}
    if numbers[1] > 0:
        finish(params, numbers, optimizer, scheduler, losses)
    return losses, None


def finish(params, numbers, optimizer, scheduler, losses):
    for p in params:
        if p.grad is not None:
            p.grad /= numbers[1].item()
    optimizer.step()
    scheduler.step()
    for p in params:
        p.grad = None
    losses.append((numbers[2] / numbers[1]).item())
    numbers[1:] = 0
