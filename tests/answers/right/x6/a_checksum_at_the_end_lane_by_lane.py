# a checksum at the end, lane by lane

import os
import shutil
import signal
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


def write(path, data):
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def save(folder, step, state, keep):
    if not folder.exists():
        folder.mkdir(parents=True)
    for name in ("next", "last"):
        if (folder / name).exists():
            shutil.rmtree(folder / name)
    (folder / "next").mkdir()
    sums = b""
    for key in sorted(state):
        memory = BytesIO()
        torch.save(state[key], memory)
        write(folder / "next" / f"{key}.pt", memory.getvalue())
        sums += struct.pack("<II", zlib.crc32(memory.getvalue()), memory.tell())
    write(folder / "next" / "sums", sums + struct.pack("<I", zlib.crc32(sums)))
    sync_directory(folder / "next")
    final = folder / f"step-{step:07}.ckpt"
    if final.exists():
        final.rename(folder / "last")
    (folder / "next").rename(final)
    sync_directory(folder)
    if (folder / "last").exists():
        shutil.rmtree(folder / "last")
    ordered = sorted(entry.name for entry in os.scandir(folder) if entry.name.startswith("step-"))
    this = ordered.index(final.name)
    for place, name in enumerate(ordered):
        if not this - keep < place <= this:
            (folder / name).rename(folder / "last")
            shutil.rmtree(folder / "last")


def load(folder):
    for path in sorted(folder.glob("step-*.ckpt"))[::-1]:
        sums = (path / "sums").read_bytes() if (path / "sums").exists() else b""
        files = sorted(path.glob("*.pt"), key=lambda file: file.stem)
        if len(sums) < 4 or zlib.crc32(sums[:-4]) != struct.unpack("<I", sums[-4:])[0]:
            continue
        raw = [file.read_bytes() for file in files]
        if sums[:-4] == b"".join(struct.pack("<II", zlib.crc32(data), len(data)) for data in raw):
            loaded = [torch.load(BytesIO(data), map_location=torch.device("cpu")) for data in raw]
            return int(path.stem[5:]), dict(zip([file.stem for file in files], loaded))


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


def preemptible(job):
    state = {"kill": float("inf"), "signals": 0}

    def handler(number, frame):
        state["signals"] += 1
        state["kill"] = min(state["kill"], job.clock() + job.grace[number])

    signal.signal(signal.SIGTERM, handler)
    signal.signal(signal.SIGUSR1, handler)
    step = job.resume()
    previous = None
    if step == job.steps:
        return step
    while True:
        current = job.launch(min(1, state["signals"]))
        step += 1
        preempted = previous is not None and bool(previous.total())
        due = step == job.steps or not step % job.every
        if due or preempted:
            preempted = bool(current.total()) or preempted
            current = None
        previous = current
        if preempted and job.least(state["kill"] - job.clock()) < job.save_seconds:
            raise SystemExit(job.requeue)
        if preempted or due:
            job.save(step)
        if step == job.steps:
            return step
        if preempted:
            raise SystemExit(job.requeue)
