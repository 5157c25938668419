# by index, in one list

import torch
import torch.nn.functional as F


def accumulated_step(model, optimizer, loss_fn, x, y, micro_batch, all_reduce):
    trained = [p for p in model.parameters() if p.requires_grad]
    model.zero_grad()
    loss, count = 0.0, 0.0
    for start in range(0, len(x), micro_batch):
        part = slice(start, start + micro_batch)
        total, counted = loss_fn(model(x[part]), y[part])
        total.backward()
        loss, count = loss + total.item(), count + float(counted)
    flat = [torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in trained]
    message = torch.cat([*flat, flat[0].new_tensor([loss, count])])
    all_reduce(message)
    *gradients, loss, count = message.split([*(p.numel() for p in trained), 1, 1])
    for p, gradient in zip(trained, gradients, strict=True):
        p.grad = (gradient / count).view_as(p)
    optimizer.step()
    return (loss / count).item()


def scaled_step(model, optimizers, scaler, x, y, micro_batch, max_norm):
    model.zero_grad()
    factor = scaler.scale(torch.ones(()))
    squares = 0.0
    for start in range(0, len(x), micro_batch):
        part = slice(start, start + micro_batch)
        loss = F.cross_entropy(model(x[part]), y[part], reduction="sum") / len(x)
        before = {p: p.grad.clone() for p in model.parameters() if p.grad is not None}
        loss.backward(gradient=factor)
        for p in model.parameters():
            added = (p.grad - before.get(p, 0.0)) / scaler.get_scale()
            squares += added.pow(2).sum().item() * len(x) / len(y[part])
    first, second = optimizers
    scaler.unscale_(first)
    scaler.unscale_(second)
    owned = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    norm = torch.nn.utils.clip_grad_norm_(owned, max_norm).item()
    if norm not in (float("inf"), float("nan")) and norm == norm:
        scaler.step(first)
        scaler.step(second)
    scaler.update()
    return [norm, squares]


def train_epoch(model, optimizer, scheduler, loss_fn, loader, accumulate, state=None, stop_after=None):
    from itertools import islice

    number, rows, loss, sums = (0, 0, 0.0, {}) if state is None else state
    sums = {name: tensor.clone() for name, tensor in sums.items()}
    stream, losses, room = loader(number), [], float("inf") if stop_after is None else stop_after
    while room:
        wanted = min(room, accumulate - number % accumulate)
        group = list(islice(stream, wanted))
        for x, y in group:
            model.zero_grad()
            part = loss_fn(model(x), y)
            part.backward()
            for name, p in model.named_parameters():
                if p.grad is not None:
                    sums[name] = sums.get(name, 0) + p.grad * len(x)
            rows, loss = rows + len(x), loss + float(part.detach()) * len(x)
        number, room = number + len(group), room - len(group)
        ended = len(group) < wanted
        if rows and (ended or number % accumulate == 0):
            for name, p in model.named_parameters():
                p.grad = sums[name] / rows if name in sums else None
            optimizer.step()
            scheduler.step()
            losses.append(loss / rows)
            rows, loss, sums = 0, 0.0, {}
        if ended:
            return losses, None
    return losses, (number, rows, loss, sums)
