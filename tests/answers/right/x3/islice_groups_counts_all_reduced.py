# islice groups, counts all-reduced

from itertools import islice

from helpers import rank_device

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import init_process_group
from torch.utils.data import DataLoader, DistributedSampler, Subset


def train_epoch(model, loader, optimizer, accumulate, epoch):
    loader.sampler.set_epoch(epoch)
    device = next(model.parameters()).device
    batches = iter(loader)
    losses, seen = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    while group := list(islice(batches, accumulate)):
        optimizer.zero_grad(set_to_none=True)
        rows = torch.tensor(sum(len(y) for _, y in group), dtype=torch.float64)
        dist.all_reduce(rows)  # of all ranks
        *held, (x, y) = group
        with model.no_sync():
            for a, b in held:
                loss = nn.functional.cross_entropy(model(a.to(device)), b.to(device), reduction="sum")
                (loss * dist.get_world_size() / rows).backward()
                losses += loss.detach().cpu()
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device), reduction="sum")
        (loss * dist.get_world_size() / rows).backward()
        losses += loss.detach().cpu()
        seen += rows
        optimizer.step()
    dist.all_reduce(losses)
    return float(losses / seen)


@torch.no_grad()
def evaluate(model, dataset, batch_size):
    net = model.module
    device = next(net.parameters()).device
    before = [layer.training for layer in net.modules()]
    net.eval()
    per = -(-len(dataset) // dist.get_world_size())
    first = per * dist.get_rank()
    mine = Subset(dataset, list(range(len(dataset)))[first : first + per])
    sums = {"loss": 0.0, "accuracy": 0.0}
    for x, y in DataLoader(mine, batch_size):
        out = net(x.to(device)).cpu()
        sums["loss"] += nn.functional.cross_entropy(out, y, reduction="sum").item()
        sums["accuracy"] += (out.argmax(1) == y).sum().item()
    for layer, mode in zip(net.modules(), before, strict=True):
        layer.training = mode
    for name, value in sums.items():
        tensor = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(tensor)
        sums[name] = tensor.item() / len(dataset)
    return sums


def worker(job):
    device = rank_device()
    gpu = device.type == "cuda"
    if gpu:
        torch.cuda.set_device(device)
        init_process_group("nccl", init_method="env://", device_id=device)
    else:
        init_process_group("gloo", init_method="env://")
    model = job.make_model().to(device)
    ddp = nn.parallel.DistributedDataParallel(model, device_ids=[device] if gpu else None)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = job.make_optimizer(trained)
    sampler = DistributedSampler(job.train, seed=job.seed)
    loader = DataLoader(job.train, batch_size=job.micro_batch, sampler=sampler, num_workers=0)
    history = [
        {"train_loss": job.train_epoch(ddp, loader, optimizer, job.accumulate, e)}
        | job.evaluate(ddp, job.test, job.micro_batch)
        for e in range(job.epochs)
    ]
    if not dist.get_rank():
        torch.save(model.state_dict(), job.checkpoint)
    token = [None]
    dist.broadcast_object_list(token, src=0)  # rank 0 comes here after saving
    dist.destroy_process_group()
    return model, history
