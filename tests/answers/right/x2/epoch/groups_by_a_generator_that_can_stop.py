# groups by a generator that can stop

import copy


def endings(stream, position, accumulate, stop_after):
    """Yield each micro-batch, and what comes after it: "go on", "update", "stop" or both."""
    taken = 0
    for pair in stream:
        taken, position = taken + 1, position + 1
        yield pair, position % accumulate == 0, taken == stop_after
        del pair
        if taken == stop_after:
            return
    yield None, True, False


def train_epoch(model, optimizer, scheduler, loss_fn, loader, accumulate, state=None, stop_after=None):
    group = {"position": 0, "rows": 0, "sum": 0.0, "grads": {}} if state is None else copy.deepcopy(state)
    for name, p in model.named_parameters():
        p.grad = group["grads"].get(name)
    losses = []
    for pair, update, stop in endings(loader(group["position"]), group["position"], accumulate, stop_after):
        if pair is not None:
            loss = loss_fn(model(pair[0]), pair[1]) * len(pair[0])
            loss.backward()
            group["position"] += 1
            group["rows"] += len(pair[0])
            group["sum"] += loss.item()
        if update and group["rows"]:
            for p in model.parameters():
                if p.grad is not None:
                    p.grad.div_(group["rows"])
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            losses.append(group["sum"] / group["rows"])
            group["rows"], group["sum"] = 0, 0.0
        if stop:
            group["grads"] = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
            return losses, copy.deepcopy(group)
    return losses, None
