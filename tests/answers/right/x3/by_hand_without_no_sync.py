# by hand, without no_sync

import os

from helpers import rank_device

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def train_epoch(model, loader, optimizer, accumulate, epoch):
    net, n = model.module, dist.get_world_size()
    params = [p for p in net.parameters() if p.requires_grad]
    loader.sampler.set_epoch(epoch)
    batches = list(loader)
    total = count = 0.0
    for start in range(0, len(batches), accumulate):
        group = batches[start : start + accumulate]
        rows = sum(len(y) for _, y in group)
        for p in params:
            p.grad = None
        for x, y in group:
            x, y = x.to(params[0].device), y.to(params[0].device)
            loss = F.cross_entropy(net(x), y) * len(y) / rows
            loss.backward()
            total, count = total + loss.item() * rows, count + len(y)
        flat = torch.cat([p.grad.flatten() for p in params]) / n
        dist.all_reduce(flat)
        for p, g in zip(params, flat.split([p.numel() for p in params])):
            p.grad = g.view_as(p)
        optimizer.step()
    both = [None] * n
    dist.all_gather_object(both, (total, count))
    return sum(t for t, _ in both) / sum(c for _, c in both)


def evaluate(model, dataset, batch_size):
    net = model.module
    modes = [(layer, layer.training) for layer in net.modules()]
    net.train(False)
    rank, n = dist.get_rank(), dist.get_world_size()
    mine = [i for i in range(len(dataset)) if i % n == rank]
    loss, right = 0.0, 0
    with torch.inference_mode():
        for start in range(0, len(mine), batch_size):
            rows = [dataset[i] for i in mine[start : start + batch_size]]
            x = torch.stack([x for x, _ in rows])
            y = torch.stack([y for _, y in rows])
            out = net(x.to(next(net.parameters()).device)).cpu()
            loss += F.cross_entropy(out, y, reduction="sum").item()
            right += int((out.argmax(-1) == y).sum())
    for layer, mode in modes:
        layer.training = mode
    all_of_them = [None] * n
    dist.all_gather_object(all_of_them, (loss, right))
    size = len(dataset)
    return {"accuracy": sum(r for _, r in all_of_them) / size, "loss": sum(v for v, _ in all_of_them) / size}


def worker(job):
    rank, n = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = rank_device()
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.set_device(device.index)
    device_id = device if cuda else None
    dist.init_process_group(backend="nccl" if cuda else "gloo", rank=rank, world_size=n, device_id=device_id)
    try:
        net = job.make_model().to(device)
        ddp = DDP(net, gradient_as_bucket_view=True)
        optimizer = job.make_optimizer(filter(lambda p: p.requires_grad, net.parameters()))
        loader = DataLoader(job.train, job.micro_batch, sampler=DistributedSampler(job.train, n, rank, seed=job.seed))
        history = []
        for epoch in range(job.epochs):
            entry = {"train_loss": job.train_epoch(ddp, loader, optimizer, job.accumulate, epoch)}
            entry.update(job.evaluate(ddp, job.test, job.micro_batch))
            history += [entry]
        if rank == 0:
            torch.save({k: v.cpu() for k, v in net.state_dict().items()}, job.checkpoint)
        dist.barrier()
    finally:
        dist.destroy_process_group()
    return net, history
