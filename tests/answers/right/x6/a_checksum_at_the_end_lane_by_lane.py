# a checksum at the end, lane by lane

import os
import struct
import zlib
from io import BytesIO

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy


def sync_directory(folder):
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def save(folder, step, state, keep):
    if not folder.exists():
        folder.mkdir(parents=True)
    (folder / "next").unlink(missing_ok=True)
    memory = BytesIO()
    torch.save(state, memory)
    memory.write(struct.pack("<II", zlib.crc32(memory.getvalue()), memory.tell()))
    descriptor = os.open(folder / "next", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        rest = memoryview(memory.getvalue())
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    (folder / "next").rename(folder / f"step-{step:07}.ckpt")
    sync_directory(folder)
    ordered = sorted(entry.name for entry in os.scandir(folder) if entry.name.startswith("step-"))
    this = ordered.index(f"step-{step:07}.ckpt")
    for place, name in enumerate(ordered):
        if not this - keep < place <= this:
            (folder / name).unlink()


def load(folder):
    for path in sorted(folder.glob("step-*.ckpt"))[::-1]:
        raw = path.read_bytes()
        if len(raw) < 8:
            continue
        checksum, length = struct.unpack("<II", raw[-8:])
        if length == len(raw) - 8 and zlib.crc32(raw[:-8]) == checksum:
            return int(path.stem[5:]), torch.load(BytesIO(raw[:-8]), map_location=torch.device("cpu"))


def gradient(model, streams, random, micro_batches):
    def one_lane(lane):
        for p in model.parameters():
            p.grad = None
        torch.set_rng_state(random[lane])
        loss = 0.0
        for _ in range(micro_batches):
            x, y = next(streams[lane])
            loss = cross_entropy(model(x), y) / (2 * micro_batches)
            loss.backward()
        random[lane] = torch.get_rng_state()
        return [p.grad.detach() for p in model.parameters()]

    found = [one_lane(lane) for lane in streams]
    for position, p in enumerate(model.parameters()):
        total = found[0][position].clone()
        for other in found[1:]:
            total += other[position]
        if dist.get_world_size() > 1:
            dist.all_reduce(total, op=dist.ReduceOp.SUM)
        p.grad = total


def train(job):
    rank = dist.get_rank()
    both = dist.get_world_size() == 1
    net = job.make_model().train()
    adam = job.make_optimizer(net.parameters())
    plan = job.make_schedule(adam)
    lanes = {}
    for number in (0, 1) if both else (rank,):
        torch.manual_seed(job.seed + number)
        lanes[number] = {"stream": job.make_stream(number), "random": torch.get_rng_state()}
    saved = job.load(job.folder) if rank == 0 else None
    if not both:
        envelope = [saved]
        dist.broadcast_object_list(envelope, src=0)
        saved = envelope.pop()
    at = 0
    if saved is not None:
        at = saved[0]
        net.load_state_dict(saved[1]["weights"])
        adam.load_state_dict(saved[1]["adam"])
        plan.load_state_dict(saved[1]["plan"])
        for number, lane in lanes.items():
            lane["stream"].load_state_dict(saved[1][f"lane{number}"]["stream"])
            lane["random"] = saved[1][f"lane{number}"]["random"]
    streams = {number: lane["stream"] for number, lane in lanes.items()}
    random = {number: lane["random"] for number, lane in lanes.items()}
    while at < job.steps:
        at += 1
        job.gradient(net, streams, random, job.micro_batches)
        adam.step()
        plan.step()
        if at == job.steps or not at % job.every:
            content = {"weights": net.state_dict(), "adam": adam.state_dict(), "plan": plan.state_dict()}
            for number in streams:
                content[f"lane{number}"] = {"stream": streams[number].state_dict(), "random": random[number]}
            if not both:
                other = [None]
                if rank == 1:
                    other = [content["lane1"]]
                dist.broadcast_object_list(other, src=1)
                content["lane1"] = other[0]
            if rank == 0:
                job.save(job.folder, at, content, job.keep)
    dist.barrier()
    return net
