# saved under another name first

from pathlib import Path

from helpers import rank_device

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def worker(job):
    here = rank_device()
    if here.type == "cuda":
        torch.cuda.set_device(f"cuda:{here.index}")
        dist.init_process_group("cpu:gloo,cuda:nccl", device_id=torch.device(f"cuda:{here.index}"))
    else:
        dist.init_process_group("gloo")
    model = DistributedDataParallel(job.make_model().to(here), static_graph=False)
    sampler = DistributedSampler(job.train, seed=job.seed)
    loader = DataLoader(job.train, batch_size=job.micro_batch, sampler=sampler, shuffle=False)
    optimizer = job.make_optimizer([p for p in model.module.parameters() if p.requires_grad])
    history = []
    for epoch in range(job.epochs):
        history.append({"train_loss": job.train_epoch(model, loader, optimizer, job.accumulate, epoch)})
        history[-1].update(job.evaluate(model, job.test, job.micro_batch))
    if dist.get_rank() == 0:
        path = Path(job.checkpoint)
        torch.save(model.module.state_dict(), path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)
    dist.monitored_barrier() if here.type == "cpu" else dist.barrier()
    dist.destroy_process_group()
    return model.module, history
