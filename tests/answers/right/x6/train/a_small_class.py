# a small class

import torch
import torch.distributed as dist


class Run:
    def __init__(self, job):
        self.job, self.rank, self.world = job, dist.get_rank(), dist.get_world_size()
        self.model = job.make_model()
        self.optimizer = job.make_optimizer(self.model.parameters())
        self.schedule = job.make_schedule(self.optimizer)
        self.streams, self.random = {}, {}
        for lane in (0, 1):
            if lane % self.world == self.rank:
                self.streams[lane] = job.make_stream(lane)
                self.random[lane] = torch.Generator().manual_seed(job.seed + lane).get_state()
        self.done = 0

    def restore(self):
        box = [self.job.load(self.job.folder)] if self.rank == 0 else [None]
        dist.broadcast_object_list(box)
        if box[0]:
            self.done, state = box[0]
            self.model.load_state_dict(state["m"])
            self.optimizer.load_state_dict(state["o"])
            self.schedule.load_state_dict(state["s"])
            for lane in self.streams:
                stream, self.random[lane] = state["lanes"][lane]
                self.streams[lane].load_state_dict(stream)

    def store(self):
        mine = {lane: [self.streams[lane].state_dict(), self.random[lane]] for lane in self.streams}
        parts = [None] * self.world if self.rank == 0 else None
        dist.gather_object(mine, parts)
        if self.rank == 0:
            lanes = {lane: pair for part in parts for lane, pair in part.items()}
            state = {"m": self.model.state_dict(), "o": self.optimizer.state_dict(), "s": self.schedule.state_dict()}
            self.job.save(self.job.folder, self.done, state | {"lanes": lanes}, self.job.keep)

    def step(self):
        self.job.gradient(self.model, self.streams, self.random, self.job.micro_batches)
        self.optimizer.step()
        self.schedule.step()
        self.done += 1


def train(job):
    run = Run(job)
    run.restore()
    while run.done < job.steps:
        run.step()
        if run.done % job.every == 0 or run.done == job.steps:
            run.store()
    dist.barrier()
    return run.model
