# an all-reduce of one flat gradient

import torch
import torch.distributed as dist
import torch.nn.functional as F


def train_epoch(model, loader, optimizer, accumulate, epoch):
    loader.sampler.set_epoch(epoch)
    net = model.module
    trained = [p for p in net.parameters() if p.requires_grad]
    here, sums, batches = trained[0].device, torch.zeros(2, dtype=torch.float64), list(loader)
    for start in range(0, len(batches), accumulate):
        optimizer.zero_grad()
        group, rows = batches[start : start + accumulate], 0
        for x, y in group:
            loss = F.cross_entropy(net(x.to(here)), y.to(here), reduction="sum")
            loss.backward()
            rows += len(x)
            sums += torch.tensor([loss.item(), len(x)], dtype=torch.float64)
        flat = torch.nn.utils.parameters_to_vector([p.grad for p in trained])
        dist.all_reduce(flat)
        flat /= rows * dist.get_world_size()
        for p, part in zip(trained, flat.split([p.numel() for p in trained])):
            p.grad = part.view_as(p).clone()
        optimizer.step()
    sums = sums.to(here)
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()
