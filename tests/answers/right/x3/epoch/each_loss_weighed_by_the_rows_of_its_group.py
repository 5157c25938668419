# each loss weighed by the rows of its group

import contextlib

import torch
import torch.distributed as dist
import torch.nn.functional as F


def train_epoch(model, loader, optimizer, accumulate, epoch):
    loader.sampler.set_epoch(epoch)
    device = next(model.parameters()).device
    sizes = [min(loader.batch_size, len(loader.sampler) - i * loader.batch_size) for i in range(len(loader))]
    total = torch.zeros((), dtype=torch.float64, device=device)
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        first = i - i % accumulate
        rows = sum(sizes[first : first + accumulate])
        ends = i + 1 == min(first + accumulate, len(sizes))
        with contextlib.ExitStack() as stack:
            if not ends:
                stack.enter_context(model.no_sync())
            loss = F.cross_entropy(model(x.to(device)), y.to(device)) * (len(x) / rows)
            loss.backward()
        total += loss.detach() * rows
        if ends:
            optimizer.step()
            optimizer.zero_grad()
    dist.all_reduce(total)
    return total.item() / (sum(sizes) * dist.get_world_size())
