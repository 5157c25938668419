# torch.func.grad on each micro-batch

import torch


def train_epoch(model, optimizer, scheduler, loss_fn, loader, accumulate, state=None, stop_after=None):
    buffers = dict(model.named_buffers())
    trained = dict(model.named_parameters())

    def summed(parameters, x, y):
        return loss_fn(torch.func.functional_call(model, (parameters, buffers), (x,)), y) * len(x)

    first = {"at": 0, "rows": 0, "total": 0.0, "sums": {name: torch.zeros_like(p) for name, p in trained.items()}}
    now = {**first} if state is None else {**state}
    losses, taken = [], 0

    def update():
        for name, p in trained.items():  # torch.func gives zeros where no row reaches a parameter
            p.grad = now["sums"][name] / now["rows"] if now["sums"][name].any() else None
        optimizer.step()
        scheduler.step()
        losses.append(now["total"] / now["rows"])
        now.update(rows=0, total=0.0, sums=first["sums"])

    for x, y in loader(now["at"]):
        named = {name: p.detach() for name, p in trained.items()}
        grads, loss = torch.func.grad_and_value(summed)(named, x, y)
        now["sums"] = {name: now["sums"][name] + grads[name] for name in grads}
        now.update(at=now["at"] + 1, rows=now["rows"] + len(x), total=now["total"] + loss.item())
        taken += 1
        if now["at"] % accumulate == 0:
            update()
        if taken == stop_after:
            return losses, now
    if now["rows"]:
        update()
    return losses, None
