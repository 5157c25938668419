# a small class

from helpers import rank_device

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


class Run:
    def __init__(self, job):
        self.job, self.here = job, rank_device()
        self.model = job.make_model().to(self.here)
        self.ddp = DistributedDataParallel(self.model)
        self.optimizer = job.make_optimizer([p for p in self.model.parameters() if p.requires_grad])
        self.loader = DataLoader(
            job.train, batch_size=job.micro_batch, sampler=DistributedSampler(job.train, shuffle=True, seed=job.seed)
        )

    def epoch(self, number):
        loss = self.job.train_epoch(self.ddp, self.loader, self.optimizer, self.job.accumulate, number)
        return {"train_loss": loss} | self.job.evaluate(self.ddp, self.job.test, self.job.micro_batch)

    def save(self):
        if dist.get_rank() == 0:
            torch.save(
                {name: t.detach().cpu().clone() for name, t in self.model.state_dict().items()}, self.job.checkpoint
            )
        dist.barrier()


def open_group(here):
    if here.type != "cuda":
        return dist.init_process_group("gloo")
    torch.accelerator.set_device_index(here.index)
    dist.init_process_group(device_id=here)  # its backend is NCCL


def worker(job):
    open_group(rank_device())
    run = Run(job)
    history = [run.epoch(number) for number in range(job.epochs)]
    run.save()
    dist.destroy_process_group()
    return run.model, history
