# the digest in the name, flat gradients

import hashlib
import math
import os
import shutil
import signal

import torch
import torch.distributed as dist
import torch.nn.functional as F


def listed(folder):
    out = []
    if folder.exists():
        for path in folder.iterdir():
            if path.name.startswith("step-"):
                step, digest, _ = path.name[5:].split(".")
                out.append((int(step), digest, path))
    return sorted(out)


def sync_directory(folder):
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def digest_of(directory):
    joined = hashlib.sha1()
    for file in sorted(directory.iterdir()):
        joined.update(file.name.encode() + b"=" + hashlib.sha1(file.read_bytes()).digest())
    return joined.hexdigest()


def save(folder, step, state, keep):
    folder.mkdir(exist_ok=True, parents=True)
    for path in folder.iterdir():
        if not path.name.startswith("step-"):
            shutil.rmtree(path)
    part = folder / "part"
    part.mkdir()
    for key in state:
        with open(part / f"{key}.pt", "xb") as file:
            torch.save(state[key], file)
            file.flush()
            os.fsync(file)
    sync_directory(part)
    final = folder / f"step-{step}.{digest_of(part)}.d"
    if final.exists():  # damaged in a file that was added
        final.rename(folder / "same")
    part.replace(final)
    sync_directory(folder)
    older = [path for n, _, path in listed(folder) if n < step]
    wanted = {final, *(older[max(0, len(older) - keep + 1) :] if keep > 1 else [])}
    for _, _, path in listed(folder):
        if path not in wanted:
            path.rename(folder / f"unwanted.{path.name}")
    for path in folder.iterdir():
        if not path.name.startswith("step-"):
            shutil.rmtree(path)


def load(folder):
    found = None
    for step, digest, path in listed(folder):
        if digest_of(path) == digest:
            found = step, path
    return found and (found[0], {file.stem: torch.load(file) for file in found[1].iterdir()})


def flat(model):
    return torch.cat([p.grad.reshape(-1) for p in model.parameters()])


def gradient(model, streams, random, micro_batches):
    lane_sums = {}
    for lane in streams:
        total = 0
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(random[lane])
            for _ in range(micro_batches):
                for p in model.parameters():
                    p.grad = torch.zeros_like(p)
                x, y = next(streams[lane])
                F.cross_entropy(model(x), y, reduction="sum").div(len(y)).backward()
                total = flat(model) + total
            random[lane] = torch.get_rng_state()
        lane_sums[lane] = total
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, lane_sums)
    both = {lane: value for part in parts for lane, value in part.items()}
    mean = (both[0] + both[1]) * (0.5 / micro_batches)
    for p, piece in zip(model.parameters(), mean.split([p.numel() for p in model.parameters()])):
        p.grad = piece.view_as(p).clone()


class Everything:
    def __init__(self, job, lanes):
        self.model = job.make_model()
        self.optimizer = job.make_optimizer(list(self.model.parameters()))
        self.schedule = job.make_schedule(self.optimizer)
        self.streams = {lane: job.make_stream(lane) for lane in lanes}
        self.random = {}
        for lane in lanes:
            generator = torch.Generator()
            generator.manual_seed(job.seed + lane)
            self.random[lane] = generator.get_state()

    def shared(self):
        return [self.model.state_dict(), self.optimizer.state_dict(), self.schedule.state_dict()]

    def own(self):
        return {lane: [stream.state_dict(), self.random[lane]] for lane, stream in self.streams.items()}

    def restore(self, shared, own):
        for part, state in zip((self.model, self.optimizer, self.schedule), shared):
            part.load_state_dict(state)
        for lane, stream in self.streams.items():
            place, self.random[lane] = own[lane]
            stream.load_state_dict(place)


def train(job):
    alone = dist.get_world_size() == 1
    run = Everything(job, (0, 1) if alone else (dist.get_rank(),))
    step = 0
    message = [None]
    if dist.get_rank() == 0:
        message[0] = job.load(job.folder)
    if not alone:
        dist.broadcast_object_list(message, src=0)
    if message[0] is not None:
        step, state = message[0]
        run.restore(state["shared"], state["lanes"])
    while step != job.steps:
        job.gradient(run.model, run.streams, run.random, job.micro_batches)
        run.optimizer.step()
        run.schedule.step()
        step += 1
        if step in {*range(job.every, job.steps, job.every), job.steps}:
            owns = [run.own()]
            if not alone:
                owns = [None, None]
                dist.all_gather_object(owns, run.own())
            if dist.get_rank() == 0:
                lanes = dict(sorted(item for own in owns for item in own.items()))
                job.save(job.folder, step, {"shared": run.shared(), "lanes": lanes}, job.keep)
            if step == job.steps:
                dist.barrier()
    return run.model


def preemptible(job):
    seconds = {}  # by signal, when this rank is killed because of it

    def on(number, frame):
        seconds[number] = min(seconds.get(number, math.inf), job.clock() + job.grace[number])

    for number in seconds.keys() | job.grace.keys():
        signal.signal(number, on)
    step = job.resume()
    while step != job.steps:
        until = min(job.steps, step - step % job.every + job.every)
        steps, total = [job.launch(len(seconds))], 0
        step += 1
        while step < until and not total:
            steps.append(job.launch(len(seconds)))
            step += 1
            total += steps[-2].total()
        total += steps[-1].total()
        if total and job.least(min(seconds.values(), default=math.inf) - job.clock()) < job.save_seconds:
            raise SystemExit(job.requeue)
        job.save(step)
        if total and step < job.steps:
            raise SystemExit(job.requeue)
    return step
