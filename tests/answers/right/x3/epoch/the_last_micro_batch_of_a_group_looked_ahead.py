# the last micro-batch of a group looked ahead

import contextlib

import torch
import torch.distributed as dist
import torch.nn.functional as F


def train_epoch(model, loader, optimizer, accumulate, epoch):
    loader.sampler.set_epoch(epoch)
    trained = [p for p in model.module.parameters() if p.requires_grad]
    here = trained[0].device
    totals = torch.zeros(2, dtype=torch.float64)
    optimizer.zero_grad()
    stream, number, rows = iter(loader), 0, 0
    ahead = next(stream)
    while ahead is not None:
        (x, y), ahead = ahead, next(stream, None)
        number += 1
        synchronise = ahead is None or number == accumulate
        with contextlib.nullcontext() if synchronise else model.no_sync():
            loss = F.cross_entropy(model(x.to(here)), y.to(here), reduction="sum")
            loss.backward()
        rows += x.shape[0]
        totals += torch.tensor([float(loss.detach()), x.shape[0]], dtype=torch.float64)
        if synchronise:
            for p in trained:
                p.grad.div_(rows)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            number = rows = 0
    totals = totals.to(here)
    dist.all_reduce(totals)
    return (totals[0] / totals[1]).item()
