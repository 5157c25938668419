# a generator of groups

import torch


def groups(loader, size):
    group = []
    for pair in loader:
        group.append(pair)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def train_epoch(model, optimizer, scheduler, loss_fn, loader, accumulate):
    def update(group):
        optimizer.zero_grad()
        rows = sum(len(x) for x, _ in group)
        losses = []
        for x, y in group:
            loss = loss_fn(model(x), y) * (len(x) / rows)
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
        scheduler.step()
        return torch.stack(losses).sum().item()

    return [update(group) for group in groups(loader, accumulate)]
