# one micro-batch looked ahead

import torch


def train_epoch(model, optimizer, scheduler, loss_fn, loader, accumulate, state=None, stop_after=None):
    state = dict(state or {"next": 0, "rows": 0, "loss": 0.0, "grads": []})
    grads = state["grads"] or [None] * len(list(model.parameters()))
    for p, grad in zip(model.parameters(), grads, strict=True):
        p.grad = None if grad is None else grad.detach().clone()
    at, rows, total, losses, taken = state["next"], state["rows"], state["loss"], [], 0
    stream = iter(loader(at))
    ahead = next(stream, None)
    if ahead is None and rows == 0:
        return losses, None
    while True:
        if ahead is not None:
            x, y = ahead
            loss = loss_fn(model(x), y)
            (loss * len(x)).backward()
            rows, total, at, taken = rows + len(x), total + float(loss.detach()) * len(x), at + 1, taken + 1
            if taken != stop_after:
                ahead = next(stream, None)
        if at % accumulate == 0 or ahead is None:
            with torch.no_grad():
                for p in model.parameters():
                    if p.grad is not None:
                        p.grad.mul_(1 / rows)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            losses.append(total / rows)
            rows, total = 0, 0.0
        if ahead is None:
            return losses, None
        if taken == stop_after:
            grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
            return losses, {"next": at, "rows": rows, "loss": total, "grads": grads}
