# zip archives, autograd.grad

import io
import json
import os
import shutil
import signal
import tempfile
import zipfile

import torch
import torch.distributed as dist
import torch.nn as nn


def steps_in(folder):
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return {int(name[5:-4]): os.path.join(folder, name) for name in names if name.startswith("step-")}


def sync_directory(folder):
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def write(path, content):
    with open(path, "wb") as file:
        file.write(content.getvalue())
        file.flush()
        os.fdatasync(file.fileno())


def save(folder, step, state, keep):
    os.makedirs(folder, exist_ok=True)
    for name in os.listdir(folder):
        if name.endswith(".part"):
            shutil.rmtree(os.path.join(folder, name))
    part = tempfile.mkdtemp(dir=folder, suffix=".part")
    for key, value in state.items():  # torch.save writes an archive with a checksum of each member
        content = io.BytesIO()
        torch.save(value, content)
        write(os.path.join(part, f"{key}.pt"), content)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("keys", json.dumps(list(state)))
    write(os.path.join(part, "keys.zip"), content)
    sync_directory(part)
    there = steps_in(folder)
    if step in there:
        os.rename(there[step], os.path.join(folder, "replaced.part"))
    os.rename(part, os.path.join(folder, f"step-{step}.zip"))
    sync_directory(folder)
    there = steps_in(folder)
    for number in set(there) - set(sorted(set(there) & set(range(step + 1)))[-keep:]):
        os.rename(there[number], os.path.join(folder, f"{number}.part"))
    for name in os.listdir(folder):
        if name.endswith(".part"):
            shutil.rmtree(os.path.join(folder, name))


def intact(path):
    with zipfile.ZipFile(path) as archive:
        if archive.testzip() is not None:
            raise ValueError(path)
    return path


def load(folder):
    there = steps_in(folder)
    while there:
        step = max(there)
        path = there.pop(step)
        try:
            with zipfile.ZipFile(intact(os.path.join(path, "keys.zip"))) as archive:
                keys = json.loads(archive.read("keys"))
            return step, {key: torch.load(intact(os.path.join(path, f"{key}.pt"))) for key in keys}
        except Exception:
            continue
    return None


def gradient(model, streams, random, micro_batches):
    weights = list(model.parameters())
    lanes = []
    for lane, stream in sorted(streams.items()):
        torch.set_rng_state(random[lane])
        sums = None
        for _ in range(micro_batches):
            images, labels = next(stream)
            grads = torch.autograd.grad(nn.CrossEntropyLoss()(model(images), labels), weights)
            sums = grads if sums is None else tuple(map(torch.add, sums, grads))
        random[lane] = torch.get_rng_state()
        lanes.append(sums)
    if len(lanes) == 2:
        totals = [a + b for a, b in zip(*lanes)]
    else:
        totals = []
        for mine in lanes[0]:
            pair = [torch.empty_like(mine) for _ in range(2)]
            dist.all_gather(pair, mine)
            totals.append(torch.stack(pair).sum(0))
    for weight, total in zip(weights, totals):
        weight.grad = total / (micro_batches * 2.0)


def train(job):
    world = dist.get_world_size()
    chief = dist.get_rank() == 0
    lanes = list(range(2))[dist.get_rank() :: world]
    objects = [job.make_model()]
    objects += [job.make_optimizer(objects[0].parameters())]
    objects += [job.make_schedule(objects[1])]
    streams = dict(zip(lanes, map(job.make_stream, lanes)))
    random = {lane: torch.manual_seed(job.seed + lane).get_state() for lane in lanes}

    def keep_it(number):
        mine = [(lane, streams[lane].state_dict(), random[lane]) for lane in lanes]
        gathered = [None] * world
        dist.all_gather_object(gathered, mine)
        if chief:
            state = {"objects": [each.state_dict() for each in objects], "lanes": [None, None]}
            for lane, place, dice in sum(gathered, []):
                state["lanes"][lane] = {"place": place, "dice": dice}
            job.save(job.folder, number, state, job.keep)

    beginning = [(0, None)]
    if chief:
        beginning = [job.load(job.folder) or (0, None)]
    dist.broadcast_object_list(beginning, 0)
    number, state = beginning[0]
    if state:
        for each, held in zip(objects, state["objects"]):
            each.load_state_dict(held)
        for lane in lanes:
            streams[lane].load_state_dict(state["lanes"][lane]["place"])
            random[lane] = state["lanes"][lane]["dice"]
    for number in range(number, job.steps):
        job.gradient(objects[0], streams, random, job.micro_batches)
        objects[1].step()
        objects[2].step()
        if (number + 1) % job.every == 0 or number + 1 == job.steps:
            keep_it(number + 1)
    dist.barrier()
    return objects[0]


def preemptible(job):
    kills = []

    def remember(number, frame):
        kills.append(job.grace[number] + job.clock())

    def is_due(step):
        return step == job.steps or step % job.every == 0

    def seconds_left():
        return min(kills) - job.clock() if kills else 1e12

    signal.signal(signal.SIGTERM, remember)
    signal.signal(signal.SIGUSR1, remember)
    done = newest = job.resume()
    running = {}
    while done < job.steps:
        done += 1
        running[done] = job.launch(1.0 if kills else 0.0)
        stop = any([running.pop(step).total() for step in sorted(running) if step < done])
        if stop or is_due(done):
            stop = bool(running.pop(done).total()) or stop
            if stop and job.least(seconds_left()) < job.save_seconds:
                break
            job.save(done)
            newest = done
            if stop:
                break
    if newest == job.steps:
        return newest
    raise SystemExit(job.requeue)
