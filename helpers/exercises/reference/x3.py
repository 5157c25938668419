"""The reference answers of solutions/11b_x3_ddp.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import contextlib
import statistics
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from helpers import SmallCNN, check, device_name, digits, hint, pick_device, rank_device, ranks_device, run_ranks, show_table
from helpers.core.device import synchronize
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

device = pick_device()
pair = ranks_device(2)


def train_epoch(model, loader, optimizer, accumulate, epoch):
    loader.sampler.set_epoch(epoch)
    trained = [p for p in model.parameters() if p.requires_grad]
    here = trained[0].device
    seen = torch.zeros(2, dtype=torch.float64, device=here)  # sum of losses, rows
    rows = 0
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader, start=1):
        last = i % accumulate == 0 or i == len(loader)
        with contextlib.nullcontext() if last else model.no_sync():
            loss = F.cross_entropy(model(x.to(here)), y.to(here), reduction="sum")
            loss.backward()
        rows += len(x)
        seen[0] += loss.detach()  # no .item(): it would wait for the GPU in every micro-batch
        seen[1] += len(x)
        if last:
            for p in trained:
                p.grad /= rows  # DDP has divided by the number of ranks
            optimizer.step()
            optimizer.zero_grad()
            rows = 0
    dist.all_reduce(seen)
    return (seen[0] / seen[1]).item()


def evaluate(model, dataset, batch_size):
    inner = model.module  # DDP's own forward pass broadcasts BatchNorm's buffers, and ranks may have fewer batches
    here = next(inner.parameters()).device
    modes = {layer: layer.training for layer in inner.modules()}  # a frozen BatchNorm stays in evaluation mode
    inner.eval()
    totals = torch.zeros(3, dtype=torch.float64, device=here)  # sum of losses, right answers, rows
    mine = Subset(dataset, range(dist.get_rank(), len(dataset), dist.get_world_size()))
    with torch.no_grad():
        for x, y in DataLoader(mine, batch_size=batch_size):
            logits, y = inner(x.to(here)), y.to(here)
            totals[0] += F.cross_entropy(logits, y, reduction="sum")
            totals[1] += (logits.argmax(1) == y).sum()
            totals[2] += len(y)
    for layer, mode in modes.items():
        layer.training = mode
    dist.all_reduce(totals)
    return {"loss": (totals[0] / totals[2]).item(), "accuracy": (totals[1] / totals[2]).item()}


def worker(job):
    here = rank_device()
    if here.type == "cuda":
        torch.cuda.set_device(here)
        dist.init_process_group("nccl", device_id=here)
    else:
        dist.init_process_group("gloo")
    model = DistributedDataParallel(job.make_model().to(here))  # sends rank 0's weights to all
    sampler = DistributedSampler(job.train, shuffle=True, seed=job.seed)
    loader = DataLoader(job.train, batch_size=job.micro_batch, sampler=sampler)
    optimizer = job.make_optimizer([p for p in model.parameters() if p.requires_grad])
    history = []
    for epoch in range(job.epochs):
        train_loss = job.train_epoch(model, loader, optimizer, job.accumulate, epoch)
        history.append({"train_loss": train_loss, **job.evaluate(model, job.test, job.micro_batch)})
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), job.checkpoint)
    dist.barrier()
    dist.destroy_process_group()
    return model.module, history
