# generators and halves

import statistics

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


def train_and_log(model, optimizer, batches):
    def steps():
        for ids in batches:
            model.zero_grad()
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))
            del logits
            loss.backward()
            optimizer.step()
            yield loss.detach().clone()
            del loss

    return list(steps())


def head_loss(head, hidden, targets):
    def summed(rows, labels):
        if len(rows) > 128:
            half = len(rows) // 2
            return summed(rows[:half], labels[:half]) + summed(rows[half:], labels[half:])
        return checkpoint(
            lambda r: -head(r).float().log_softmax(-1).gather(1, labels[:, None]).sum(), rows, use_reentrant=False
        )

    return summed(hidden, targets).div(targets.numel())


def evaluate(model, batches):
    with torch.set_grad_enabled(False):
        return statistics.fmean(float(F.cross_entropy(model(b[:, :-1]).mT, b[:, 1:])) for b in batches)


def make_optimizer(parameters):
    optimizer = torch.optim.Adam(parameters)
    for group in optimizer.param_groups:
        group["foreach"] = False
    return optimizer


def log_means(model, means):
    names = {id(module): name for name, module in model.named_modules()}

    def watch(module):
        if not module._modules:
            module.register_forward_hook(
                lambda module, args, kwargs, output: means.update({names[id(module)]: output.mean().tolist()}),
                with_kwargs=True,
            )

    model.apply(watch)


def train(model, optimizer, batches):
    losses = torch.zeros(len(batches))
    for number, (x, y) in enumerate(batches):
        model.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses[number] = loss.detach()
        del loss
    return losses.tolist()
