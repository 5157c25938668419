"""The reference answers of solutions/18b_x6_survive.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import hashlib
import math
import os
import shutil
import signal
import tempfile
from pathlib import Path
from types import SimpleNamespace
from helpers import check, device_name, digits, hint, human_bytes, pick_device, run_ranks
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

device = pick_device()


def steps_in(folder):
    """Return the path of each checkpoint in `folder`, damaged or not, by its step."""
    return {int(path.name.removeprefix("step-")): path for path in folder.glob("step-*")}


def digest_of(path):
    """Return a digest of the names, lengths and bytes of all .pt files in a directory."""
    digest = hashlib.sha256()
    for file in sorted(path.glob("*.pt")):
        data = file.read_bytes()
        digest.update(f"{file.name} {len(data)} ".encode() + data)
    return digest.digest()


def sync(path):
    """Write what the system still holds of a file's bytes, or of a directory's names, to the disk."""
    opened = os.open(path, os.O_RDONLY)
    os.fsync(opened)
    os.close(opened)


def clear(folder):
    """Delete the entries of `folder`, all of them directories, whose names do not begin with step-."""
    for path in folder.iterdir():
        if not path.name.startswith("step-"):
            shutil.rmtree(path)


def save(folder, step, state, keep):
    folder.mkdir(parents=True, exist_ok=True)
    clear(folder)  # what a save that was killed left
    unfinished = folder / "unfinished"
    unfinished.mkdir()
    for name, value in state.items():
        torch.save(value, unfinished / f"{name}.pt")
    (unfinished / "sha256").write_bytes(digest_of(unfinished))
    for path in (*unfinished.iterdir(), unfinished):
        sync(path)
    older = steps_in(folder)
    if step in older:
        os.replace(older.pop(step), folder / "replaced")
    os.replace(unfinished, folder / f"step-{step}")
    sync(folder)  # the new name is on the disk before an older checkpoint goes
    kept = sorted([*(n for n in older if n < step), step])[-keep:]
    for n in older.keys() - kept:
        os.replace(older[n], folder / f"old-{n}")  # a directory loses its name before its first file
    clear(folder)


def load(folder):
    paths = steps_in(folder)
    for step in sorted(paths, reverse=True):
        digest = paths[step] / "sha256"
        if digest.is_file() and digest.read_bytes() == digest_of(paths[step]):
            return step, {file.stem: torch.load(file, map_location="cpu") for file in paths[step].glob("*.pt")}
    return None


def gradient(model, streams, random, micro_batches):
    parameters = list(model.parameters())
    sums = []  # of each lane of this rank, a gradient for each parameter
    for lane, stream in streams.items():
        for p in parameters:
            p.grad = None
        torch.set_rng_state(random[lane])
        for _ in range(micro_batches):
            x, y = next(stream)
            F.cross_entropy(model(x), y).backward()
        random[lane] = torch.get_rng_state()
        sums.append([p.grad for p in parameters])
    for p, *lanes in zip(parameters, *sums, strict=True):
        p.grad = lanes[0] + lanes[1] if len(lanes) == 2 else lanes[0]
        dist.all_reduce(p.grad)
        p.grad /= 2 * micro_batches


def of_all_ranks(lanes):
    """Return one dictionary with the entries of all ranks' dictionaries, on every rank; all ranks call it together."""
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, lanes)
    return {lane: value for part in parts for lane, value in part.items()}


def train(job):
    rank, world = dist.get_rank(), dist.get_world_size()
    model = job.make_model()
    optimizer = job.make_optimizer(model.parameters())
    schedule = job.make_schedule(optimizer)
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    streams = {lane: job.make_stream(lane) for lane in range(rank, 2, world)}
    random = {lane: torch.Generator().manual_seed(job.seed + lane).get_state() for lane in streams}
    done, found = 0, [job.load(job.folder) if rank == 0 else None]
    dist.broadcast_object_list(found, src=0)
    if found[0] is not None:
        done, state = found[0]
        for name, part in parts.items():
            part.load_state_dict(state[name])
        for lane, stream in streams.items():
            stream.load_state_dict(state["streams"][lane])
            random[lane] = state["random"][lane]
    while done < job.steps:
        job.gradient(model, streams, random, job.micro_batches)
        optimizer.step()
        schedule.step()
        done += 1
        if done % job.every == 0 or done == job.steps:
            state = {name: part.state_dict() for name, part in parts.items()}
            state["streams"] = of_all_ranks({lane: stream.state_dict() for lane, stream in streams.items()})
            state["random"] = of_all_ranks(random)
            if rank == 0:
                job.save(job.folder, done, state, job.keep)
    dist.barrier()
    return model


def preemptible(job):
    kills = [math.inf]  # when this rank will be killed, by its own clock: an entry for each signal

    def note(number, frame):
        kills.append(job.clock() + job.grace[number])

    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, note)
    step = saved = job.resume()
    running, stop = None, False
    while step < job.steps and not stop:
        before, running = running, job.launch(float(len(kills) > 1))
        step += 1
        stop = before is not None and before.total() > 0
        if stop or step % job.every == 0 or step == job.steps:
            stop = running.total() > 0 or stop
            running = None
            if not stop or job.least(min(kills) - job.clock()) >= job.save_seconds:
                job.save(step)
                saved = step
    if saved < job.steps:
        raise SystemExit(job.requeue)
    return step
