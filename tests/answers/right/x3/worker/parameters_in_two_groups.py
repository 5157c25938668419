# parameters in two groups

from helpers import rank_device

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def worker(job):
    here = rank_device()
    with_gpu = {"device_id": here} if here.type == "cuda" else {}
    if with_gpu:
        torch.cuda.set_device(here.index)
    dist.init_process_group(backend="nccl" if with_gpu else "gloo", **with_gpu)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(module=job.make_model().to(here))
    sampler = DistributedSampler(job.train, num_replicas=ranks, rank=rank, shuffle=True, seed=job.seed)
    loader = DataLoader(job.train, job.micro_batch, sampler=sampler)
    trained = [p for p in model.module.parameters() if p.requires_grad]
    wide, narrow = [p for p in trained if p.dim() > 1], [p for p in trained if p.dim() < 2]
    optimizer = job.make_optimizer([{"params": wide}, {"params": narrow}])
    history = []
    for epoch in range(job.epochs):
        entry = dict(train_loss=job.train_epoch(model, loader, optimizer, job.accumulate, epoch))
        entry.update(job.evaluate(model, job.test, job.micro_batch))
        history.append(entry)
    if rank == 0:
        with open(job.checkpoint, "wb") as file:
            torch.save(model.module.state_dict(), file)
    dist.barrier()
    dist.destroy_process_group()
    return model.module, history
