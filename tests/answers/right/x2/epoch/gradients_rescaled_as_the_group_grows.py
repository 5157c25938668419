# gradients rescaled as the group grows


def train_epoch(model, optimizer, scheduler, loss_fn, loader, accumulate):
    means, mean, rows, n = [], 0.0, 0, 0
    optimizer.zero_grad()

    def finish():
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        means.append(mean)

    for x, y in loader:
        kept = rows / (rows + len(x))
        for p in model.parameters():
            if p.grad is not None:
                p.grad.mul_(kept)
        loss = loss_fn(model(x), y)
        (loss * (1 - kept)).backward()
        mean, rows, n = kept * mean + (1 - kept) * loss.item(), rows + len(x), n + 1
        if n == accumulate:
            finish()
            mean, rows, n = 0.0, 0, 0
    if n:
        finish()
    return means
