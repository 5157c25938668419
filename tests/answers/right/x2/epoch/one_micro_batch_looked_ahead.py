# one micro-batch looked ahead

import torch


def train_epoch(model, optimizer, scheduler, loss_fn, loader, accumulate):
    losses, rows, total, n = [], 0, 0.0, 0
    optimizer.zero_grad()
    stream = iter(loader)
    ahead = next(stream, None)
    while ahead is not None:
        x, y = ahead
        loss = loss_fn(model(x), y)
        (loss * len(x)).backward()
        rows, total, n = rows + len(x), total + float(loss) * len(x), n + 1
        ahead = next(stream, None)
        if n == accumulate or ahead is None:
            with torch.no_grad():
                for p in model.parameters():
                    p.grad.mul_(1 / rows)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            losses.append(total / rows)
            rows, total, n = 0, 0.0, 0
    return losses
