# torch.func.grad on each micro-batch

import torch


def train_epoch(model, optimizer, scheduler, loss_fn, loader, accumulate):
    buffers = dict(model.named_buffers())

    def summed(parameters, buffers, x, y):
        return loss_fn(torch.func.functional_call(model, (parameters, buffers), (x,)), y) * len(x)

    losses, stream = [], iter(loader)
    while (pair := next(stream, None)) is not None:
        named = {name: p.detach() for name, p in model.named_parameters()}
        rows, total, sums = 0, 0.0, {name: torch.zeros_like(p) for name, p in named.items()}
        for number in range(accumulate):
            pair = pair if number == 0 else next(stream, None)
            if pair is None:
                break
            grads, loss = torch.func.grad_and_value(summed)(named, buffers, *pair)
            sums = {name: sums[name] + grads[name] for name in sums}
            rows, total = rows + len(pair[0]), total + loss.item()
        for name, p in model.named_parameters():
            p.grad = sums[name] / rows
        optimizer.step()
        scheduler.step()
        losses.append(total / rows)
    return losses
