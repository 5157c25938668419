# means that grow with each micro-batch

import math

import torch
from torch.nn import functional


def accumulated_step(model, optimizer, loss_fn, x, y, micro_batch, all_reduce):
    loss = count = torch.zeros((), device=x.device)
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = None
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=micro_batch)
    for xs, ys in loader:
        total, counted = loss_fn(model(xs), ys)
        total.backward()
        loss, count = loss + total.detach(), count + counted
    count = count.double()
    all_reduce(count)
    loss = loss / count
    all_reduce(loss)
    for p in filter(lambda p: p.requires_grad, model.parameters()):
        mean = torch.zeros_like(p) if p.grad is None else p.grad / count
        all_reduce(mean)
        p.grad = mean.to(p.dtype)
    optimizer.step()
    return loss


def scaled_step(model, optimizers, scaler, x, y, micro_batch, max_norm):
    [optimizer.zero_grad(set_to_none=False) for optimizer in optimizers]
    pieces = zip(x.split(micro_batch), y.split(micro_batch), strict=True)

    def flat():
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
        return torch.cat([part.flatten() for part in parts]) / scaler.get_scale()

    lengths = []
    for xs, ys in pieces:
        rows, so_far = functional.cross_entropy(model(xs), ys, reduction="none"), flat()
        scaler.scale((rows / len(x)).sum()).backward()
        lengths += [(flat() - so_far).norm() * len(x) / len(xs)] * len(xs)
    [scaler.unscale_(optimizer) for optimizer in optimizers]
    gradients = [p.grad for p in model.parameters()]
    norm = torch.stack(torch._foreach_norm(gradients)).norm()
    if math.isfinite(norm):
        torch._foreach_mul_(gradients, min(1.0, max_norm / (norm.item() + 1e-6)))
        [scaler.step(optimizer) for optimizer in optimizers]
    scaler.update()
    return norm, torch.stack(lengths).square().mean()


class Group:
    """The mean gradient and loss over the rows so far."""

    def __init__(self, model, saved):
        self.model, self.rows, self.loss = model, saved.get("rows", 0), saved.get("loss", 0.0)
        for index, p in enumerate(model.parameters()):
            kept = saved.get("mean", {}).get(index)
            p.grad = kept if kept is None else kept.detach().clone()

    def add(self, loss, rows):
        share = rows / (self.rows + rows)
        for p in self.model.parameters():
            if p.grad is not None:
                p.grad *= 1 - share
        (loss * share).backward()
        self.rows, self.loss = self.rows + rows, (1 - share) * self.loss + share * loss.detach().item()

    def state(self):
        mean = {i: p.grad.clone() for i, p in enumerate(self.model.parameters()) if p.grad is not None}
        return {"rows": self.rows, "loss": self.loss, "mean": mean}


def train_epoch(model, optimizer, scheduler, loss_fn, loader, accumulate, state=None, stop_after=None):
    saved = {} if state is None else state
    group, inside, at = Group(model, saved), saved.get("inside", 0), saved.get("at", 0)
    losses, taken = [], 0
    micro_batches = loader(at)
    while taken != stop_after:
        pair = next(micro_batches, None)
        if pair is not None:
            group.add(loss_fn(model(pair[0]), pair[1]), len(pair[0]))
            taken, at, inside = taken + 1, at + 1, inside + 1
        if inside == accumulate or (pair is None and inside):
            optimizer.step()
            scheduler.step()
            losses.append(group.loss)
            group, inside = Group(model, {}), 0
        if pair is None:
            return losses, None
    return losses, group.state() | {"inside": inside, "at": at}
