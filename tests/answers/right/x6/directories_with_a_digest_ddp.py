# directories with a digest, DDP

import hashlib
import math
import os
import re
import shutil
import signal
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def number(path):
    return int(re.fullmatch(r"step-(\d+)", path.name)[1])


def sync_directory(folder):
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def digest_of(files):
    digest = hashlib.md5()
    for file in sorted(files):
        digest.update(repr((file.name, file.read_bytes())).encode())
    return digest.hexdigest()


def save(folder, step, state, keep):
    os.makedirs(folder, exist_ok=True)
    for entry in os.listdir(folder):
        if entry.startswith(".new"):
            shutil.rmtree(folder / entry)
    new = folder / f".new-{step}"
    new.mkdir()
    for key, value in state.items():
        with open(new / f"{key}.pt", "wb") as f:
            torch.save(value, f)
            f.flush()
            os.fsync(f.fileno())
    with open(new / "digest", "w") as f:
        f.write(digest_of(new.glob("*.pt")))
        f.flush()
        os.fsync(f)
    sync_directory(new)
    final = folder / f"step-{step:08d}"
    if final.exists():
        final.rename(folder / ".new-damaged")
        shutil.rmtree(folder / ".new-damaged")
    new.rename(final)
    sync_directory(folder)
    all_of_them = sorted(folder.glob("step-*"), key=number)
    place = all_of_them.index(final)
    for path in all_of_them[: max(0, place + 1 - keep)] + all_of_them[place + 1 :]:
        path.rename(folder / f".new-{path.name}")
        shutil.rmtree(folder / f".new-{path.name}")


def load(folder):
    for path in sorted(folder.glob("step-*"), key=number, reverse=True):
        try:
            if digest_of(path.glob("*.pt")) == (path / "digest").read_text():
                parts = {p.stem: torch.load(p, map_location="cpu", weights_only=True) for p in path.glob("*.pt")}
                return number(path), parts
        except (OSError, UnicodeDecodeError):
            pass


def gradient(model, streams, random, micro_batches):
    alone = dist.get_world_size() == 1
    net = model if alone else DDP(model)
    halves = []
    for lane in sorted(streams):
        model.zero_grad(set_to_none=True)
        torch.random.set_rng_state(random[lane])
        for n in range(micro_batches):
            waits = nullcontext() if alone or n == micro_batches - 1 else net.no_sync()
            with waits:
                inputs, labels = next(streams[lane])
                nn.functional.cross_entropy(net(inputs), labels).backward()
        random[lane] = torch.random.get_rng_state()
        halves.append([weight.grad.clone() for weight in model.parameters()])
    for i, weight in enumerate(model.parameters()):
        if alone:
            weight.grad = torch.add(halves[0][i], halves[1][i]) / 2
        weight.grad.div_(micro_batches)


def train(job):
    me, n = dist.get_rank(), dist.get_world_size()
    mine = [0, 1] if n == 1 else [me]
    net = job.make_model()
    opt = job.make_optimizer(net.parameters())
    sched = job.make_schedule(opt)
    streams, random = {}, {}
    for lane in mine:
        streams[lane] = job.make_stream(lane)
        torch.manual_seed(job.seed + lane)
        random[lane] = torch.get_rng_state()
    box = [None]
    if me == 0:
        box = [job.load(job.folder)]
    dist.broadcast_object_list(box)
    first = 0
    if box[0]:
        first, kept = box[0]
        net.load_state_dict(kept["net"])
        opt.load_state_dict(kept["opt"])
        sched.load_state_dict(kept["sched"])
        for lane in mine:
            streams[lane].load_state_dict(kept[f"stream {lane}"])
            random[lane] = kept[f"random {lane}"]
    for step in range(first + 1, job.steps + 1):
        job.gradient(net, streams, random, job.micro_batches)
        opt.step()
        sched.step()
        if step % job.every and step < job.steps:
            continue
        here = {f"stream {lane}": streams[lane].state_dict() for lane in mine}
        here.update({f"random {lane}": random[lane] for lane in mine})
        everywhere = [None] * n if me == 0 else None
        dist.gather_object(here, everywhere, dst=0)
        if me == 0:
            kept = {"net": net.state_dict(), "opt": opt.state_dict(), "sched": sched.state_dict()}
            for each in everywhere:
                kept |= each
            job.save(job.folder, step, kept, job.keep)
        dist.barrier()
    return net


class Signals:
    """How many seconds this rank has left."""

    def __init__(self, clock, grace):
        self.clock, self.grace, self.kill = clock, grace, None
        signal.signal(signal.SIGUSR1, self)
        signal.signal(signal.SIGTERM, self)

    def __call__(self, number, frame):
        kill = self.clock() + self.grace[number]
        if self.kill is None or kill < self.kill:
            self.kill = kill

    def left(self):
        return math.inf if self.kill is None else self.kill - self.clock()


def preemptible(job):
    signals = Signals(job.clock, job.grace)
    step = newest = job.resume()
    behind = None
    while step < job.steps:
        running = job.launch(signals.kill is not None)
        step += 1
        told = behind.total() if behind else 0
        behind = running
        if not told and step % job.every and step < job.steps:
            continue
        told += running.total()
        behind = None
        if told == 0 or job.least(signals.left()) >= job.save_seconds:
            job.save(step)
            newest = step
        if told:
            break
    if newest == job.steps:
        return newest
    raise SystemExit(job.requeue)
