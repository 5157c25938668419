# an all-reduce for a barrier

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
    dist.init_process_group(backend="nccl" if with_gpu else "gloo", init_method="env://", **with_gpu)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(module=job.make_model().to(here))
    sampler = DistributedSampler(job.train, num_replicas=ranks, rank=rank, shuffle=True, seed=job.seed)
    loader = DataLoader(job.train, job.micro_batch, sampler=sampler)
    optimizer = job.make_optimizer(list(filter(lambda p: p.requires_grad, model.module.parameters())))
    history = []
    for epoch in range(job.epochs):
        entry = dict(train_loss=job.train_epoch(model, loader, optimizer, job.accumulate, epoch))
        entry.update(job.evaluate(model, job.test, job.micro_batch))
        history.append(entry)
    if rank == 0:
        with open(job.checkpoint, "wb") as file:
            torch.save(model.module.state_dict(), file)
    dist.all_reduce(torch.zeros(1, device=here))  # nobody passes before rank 0 has come
    dist.destroy_process_group()
    return model.module, history
