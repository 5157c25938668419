# states in a list, by recursion

import torch
import torch.distributed as dist


def train(job):
    world, rank = dist.get_world_size(), dist.get_rank()
    model = job.make_model()
    optimizer = job.make_optimizer(model.parameters())
    parts = [model, optimizer, job.make_schedule(optimizer)]
    streams = {lane: job.make_stream(lane) for lane in (0, 1) if world == 1 or lane == rank}
    random = {lane: torch.Generator().manual_seed(job.seed + lane).get_state() for lane in streams}

    def publish(done):
        pieces = [None] * world
        dist.all_gather_object(pieces, [(lane, s.state_dict(), random[lane]) for lane, s in streams.items()])
        if rank == 0:
            lanes = {str(lane): [s, r] for piece in pieces for lane, s, r in piece}
            job.save(job.folder, done, {"parts": [p.state_dict() for p in parts], "lanes": lanes}, job.keep)

    def go(done):
        if done == job.steps:
            return model
        job.gradient(model, streams, random, job.micro_batches)
        for part in parts[1:]:
            part.step()
        if (done + 1) % job.every == 0 or done + 1 == job.steps:
            publish(done + 1)
        return go(done + 1)

    holder = [job.load(job.folder) if rank == 0 else None]
    dist.broadcast_object_list(holder, src=0)
    done, state = holder[0] or (0, None)
    if state is not None:
        for part, saved in zip(parts, state["parts"], strict=True):
            part.load_state_dict(saved)
        for lane in streams:
            saved, random[lane] = state["lanes"][str(lane)]
            streams[lane].load_state_dict(saved)
    trained = go(done)
    dist.barrier()
    return trained
