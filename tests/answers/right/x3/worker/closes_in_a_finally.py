# closes in a finally

from helpers import rank_device

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def worker(job):
    here = rank_device()
    gpu = here.type == "cuda"
    if gpu:
        torch.cuda.set_device(here)
    dist.init_process_group("nccl" if gpu else "gloo", device_id=here if gpu else None)
    try:
        inner = job.make_model().to(here)
        ddp = DistributedDataParallel(inner, broadcast_buffers=False)
        optimizer = job.make_optimizer((p for p in inner.parameters() if p.requires_grad))
        loader = DataLoader(
            job.train, sampler=DistributedSampler(job.train, seed=job.seed, drop_last=False), batch_size=job.micro_batch
        )
        history = [{} for _ in range(job.epochs)]
        for epoch, entry in enumerate(history):
            entry["train_loss"] = job.train_epoch(ddp, loader, optimizer, job.accumulate, epoch)
            entry |= job.evaluate(ddp, job.test, job.micro_batch)
        if not dist.get_rank():
            torch.save(inner.state_dict(), job.checkpoint)
        dist.barrier()
    finally:
        dist.destroy_process_group()
    return inner, history
