# a loop over the numbers of steps

import torch
import torch.distributed as dist


def train(job):
    rank, world = dist.get_rank(), dist.get_world_size()
    lanes = [lane for lane in range(2) if lane % world == rank]
    model = job.make_model()
    optimizer = job.make_optimizer(model.parameters())
    schedule = job.make_schedule(optimizer)
    streams = {lane: job.make_stream(lane) for lane in lanes}
    random = {}
    for lane in lanes:
        torch.manual_seed(job.seed + lane)
        random[lane] = torch.get_rng_state()
    found = [None]
    if rank == 0:
        found = [job.load(job.folder)]
    dist.broadcast_object_list(found, 0)
    first = 0
    if found[0] is not None:
        first, state = found[0]
        for part, name in ((model, "model"), (optimizer, "optimizer"), (schedule, "schedule")):
            part.load_state_dict(state[name])
        for lane in lanes:
            streams[lane].load_state_dict(state[f"stream {lane}"])
            random[lane] = state[f"random {lane}"]
    for step in range(first + 1, job.steps + 1):
        job.gradient(model, streams, random, job.micro_batches)
        optimizer.step()
        schedule.step()
        if step % job.every and step != job.steps:
            continue
        mine = {f"stream {lane}": streams[lane].state_dict() for lane in lanes}
        mine |= {f"random {lane}": random[lane] for lane in lanes}
        everyone = [None] * world
        dist.all_gather_object(everyone, mine)
        if rank == 0:
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "schedule": schedule.state_dict(),
            }
            for part in everyone:
                state.update(part)
            job.save(job.folder, step, state, job.keep)
    dist.barrier()
    return model
