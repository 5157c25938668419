# numbers

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


def train_and_log(model, optimizer, batches):
    losses = []
    for batch in batches:
        inputs, targets = batch[:, :-1], batch[:, 1:]
        loss = F.cross_entropy(model(inputs).transpose(1, 2), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def head_loss(head, hidden, targets):
    def part(start):
        end = start + 64
        return F.cross_entropy(head(hidden[start:end]), targets[start:end], reduction="sum")

    sums = [checkpoint(part, start, use_reentrant=False) for start in range(0, len(hidden), 64)]
    return torch.stack(sums).sum() / len(hidden)


@torch.no_grad()
def evaluate(model, batches):
    losses = [F.cross_entropy(model(b[:, :-1]).flatten(0, 1), b[:, 1:].flatten()) for b in batches]
    return torch.stack(losses).mean()


def make_optimizer(parameters):
    return torch.optim.Adam(parameters, fused=True)


def log_means(model, means):
    def remember(module, inputs, output):
        means[names[module]] = output.detach().mean()

    names = {m: n for n, m in model.named_modules() if next(m.children(), None) is None}
    for module in names:
        module.register_forward_hook(remember)


def train(model, optimizer, batches):
    losses = []
    for x, y in batches:
        for p in model.parameters():
            p.grad = None
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        del loss
    return losses
