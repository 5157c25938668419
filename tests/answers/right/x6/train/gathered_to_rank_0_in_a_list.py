# gathered to rank 0 in a list

import torch
import torch.distributed as dist


def train(job):
    rank, world = dist.get_rank(), dist.get_world_size()
    lanes = (0, 1) if world == 1 else (rank,)
    model = job.make_model()
    opt = job.make_optimizer(model.parameters())
    sched = job.make_schedule(opt)
    streams, random = {}, {}
    for lane in lanes:
        streams[lane] = job.make_stream(lane)
        random[lane] = torch.Generator().manual_seed(job.seed + lane).get_state()

    def snapshot(step):
        parts = [None] * world if rank == 0 else None
        dist.gather_object([(lane, streams[lane].state_dict(), random[lane]) for lane in lanes], parts, dst=0)
        if rank != 0:
            return
        flat = sorted((item for part in parts for item in part), key=lambda item: item[0])
        job.save(
            job.folder,
            step,
            {
                "model": dict(model.state_dict()),
                "optimizer": opt.state_dict(),
                "schedule": sched.state_dict(),
                "streams": [item[1] for item in flat],
                "random": [item[2] for item in flat],
                "step": step,
            },
            job.keep,
        )

    loaded = [job.load(job.folder)] if rank == 0 else [None]
    dist.broadcast_object_list(loaded)
    done = 0
    if loaded[0]:
        done, state = loaded[0]
        for thing, name in ((model, "model"), (opt, "optimizer"), (sched, "schedule")):
            thing.load_state_dict(state[name])
        for lane in lanes:
            streams[lane].load_state_dict(state["streams"][lane])
            random[lane] = state["random"][lane]
    while done < job.steps:
        job.gradient(model, streams, random, job.micro_batches)
        opt.step()
        sched.step()
        done += 1
        if not done % job.every or done == job.steps:
            snapshot(done)
    dist.all_reduce(torch.zeros(1))
    return model
