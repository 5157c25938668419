# a sampler of its own kind

from helpers import rank_device

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


class SharedOrder(DistributedSampler):
    """All rows in an order shuffled with the seed; each rank takes a part."""

    def __init__(self, rows, seed):
        super().__init__(rows, num_replicas=dist.get_world_size(), rank=dist.get_rank(), shuffle=True, seed=seed)


def epochs_of(job, ddp, loader, optimizer):
    for epoch in range(job.epochs):
        train_loss = job.train_epoch(ddp, loader, optimizer, job.accumulate, epoch)
        yield {"train_loss": train_loss} | job.evaluate(ddp, job.test, job.micro_batch)


def worker(job):
    here = rank_device()
    if here.type == "cuda":
        torch.cuda.set_device(here)
        dist.init_process_group("nccl", device_id=here)
    else:
        dist.init_process_group("gloo")
    try:
        ddp = DistributedDataParallel(job.make_model().to(here))
        loader = DataLoader(job.train, job.micro_batch, sampler=SharedOrder(job.train, job.seed))
        optimizer = job.make_optimizer([p for p in ddp.parameters() if p.requires_grad])
        history = list(epochs_of(job, ddp, loader, optimizer))
        saved = torch.zeros(1, device=here)
        if dist.get_rank() == 0:
            torch.save(ddp.module.state_dict(), job.checkpoint)
            saved += 1
        dist.broadcast(saved, src=0)  # the others wait for it
        assert saved.item() == 1
        dist.barrier()
    finally:
        dist.destroy_process_group()
    return ddp.module, history
