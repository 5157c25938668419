# by the numbers of micro-batches


def train_epoch(model, optimizer, scheduler, loss_fn, loader, accumulate, state=None, stop_after=None):
    def clear():
        for p in model.parameters():
            p.grad = None

    clear()
    kept = {"number": 0, "sizes": [], "means": [], "gradient": {}} if state is None else state
    sizes, means = list(kept["sizes"]), list(kept["means"])
    named = dict(model.named_parameters())
    for name, gradient in kept["gradient"].items():
        named[name].grad = gradient + 0
    start = kept["number"]
    end = None if stop_after is None else start + stop_after
    losses, stream, number = [], loader(start), start
    while number != end:
        try:
            x, y = next(stream)
        except StopIteration:
            break
        mean = loss_fn(model(x), y)
        (mean * x.shape[0]).backward()
        sizes.append(x.shape[0])
        means.append(mean.item())
        number += 1
        if number % accumulate:
            continue
        losses.append(finish(model, optimizer, scheduler, sizes, means))
        clear()
        sizes, means = [], []
    else:
        gradient = {name: p.grad.detach().clone() for name, p in named.items() if p.grad is not None}
        return losses, {"number": number, "sizes": sizes, "means": means, "gradient": gradient}
    if sizes:
        losses.append(finish(model, optimizer, scheduler, sizes, means))
    return losses, None


def finish(model, optimizer, scheduler, sizes, means):
    rows = sum(sizes)
    for p in model.parameters():
        if p.grad is not None:
            p.grad = p.grad / rows
    optimizer.step()
    scheduler.step()
    return sum(size * mean for size, mean in zip(sizes, means, strict=True)) / rows
