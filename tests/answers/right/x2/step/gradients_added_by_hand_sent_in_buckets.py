# gradients added by hand, sent in buckets

import torch


def accumulated_step(model, optimizer, loss_fn, x, y, micro_batch, all_reduce):
    trained = [p for p in model.parameters() if p.requires_grad]
    sums = [torch.zeros_like(p) for p in trained]
    figures = torch.zeros(2, device=x.device)
    for xs, ys in zip(x.split(micro_batch), y.split(micro_batch), strict=True):
        total, count = loss_fn(model(xs), ys)
        gradients = torch.autograd.grad(total, trained, allow_unused=True)
        for own, gradient in zip(sums, gradients, strict=True):
            if gradient is not None:
                own += gradient
        figures = figures.to(total.dtype) + torch.stack((total.detach(), count.to(total.dtype)))
    for start in range(0, len(sums), 2):
        bucket = torch.cat([own.flatten() for own in sums[start : start + 2]])
        all_reduce(bucket)
        parts = bucket.split([own.numel() for own in sums[start : start + 2]])
        for own, part in zip(sums[start:], parts):
            own.copy_(part.view_as(own))
    all_reduce(figures)
    for p, own in zip(trained, sums, strict=True):
        p.grad = own / figures[1]
    optimizer.step()
    optimizer.zero_grad()
    return figures[0] / figures[1]
