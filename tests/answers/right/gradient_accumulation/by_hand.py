# by hand

import torch


def accumulate(model, x, y, micro_batch):
    n, mean = x.shape[0], 0.0
    for start in range(0, n, micro_batch):
        rows = slice(start, start + micro_batch)
        log_p = model(x[rows]).log_softmax(1)
        loss = -log_p.gather(1, y[rows, None]).sum() / n
        loss.backward()
        mean += loss.item()
    return mean


def accumulate_tokens(model, ids, targets, micro_batch):
    number = int(targets.ne(-100).sum())
    losses = []
    for start in range(0, len(ids), micro_batch):
        wanted = targets[start : start + micro_batch]
        if wanted.eq(-100).all():
            continue
        log_p = model(ids[start : start + micro_batch]).log_softmax(-1)
        here = wanted.ne(-100)
        picked = log_p.gather(2, wanted.clamp(min=0)[..., None])[..., 0]
        loss = -(picked * here).sum()
        loss.backward(torch.full_like(loss, 1 / number))
        losses.append(loss.item())
    return sum(losses) / number


def largest_micro_batch(peak_bytes, budget, most):
    high = peak_bytes(most)
    if high <= budget:
        return most
    slope = (high - peak_bytes(most // 2)) * 2 // most
    rows = most - -(-(high - budget) // slope)
    if rows < 1:
        return 0
    return rows if peak_bytes(rows) <= budget else 0


def accumulate_replica(replica, x, y, micro_batch):
    starts = list(range(0, len(x), micro_batch))
    mean = 0.0
    with replica.no_sync():
        for start in starts[:-1]:
            rows = slice(start, start + micro_batch)
            loss = -replica(x[rows]).log_softmax(1).gather(1, y[rows, None]).sum() / len(x)
            loss.backward()
            mean += loss.item()
    rows = slice(starts[-1], None)
    loss = -replica(x[rows]).log_softmax(1).gather(1, y[rows, None]).sum() / len(x)
    loss.backward()
    return mean + loss.item()
