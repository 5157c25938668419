# a manifest in JSON, tensors for the collectives

import hashlib
import json
import os
import shutil
import signal

import torch
import torch.distributed as dist
import torch.nn.functional as F


def as_step(name):
    return int(name.split("-")[1])


def sync_directory(folder):
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def proof(data):
    return [len(data), hashlib.sha256(data).hexdigest()]


def save(folder, step, state, keep):
    folder.mkdir(parents=True, exist_ok=True)
    held = sorted((p.name for p in folder.iterdir() if p.name.startswith("step-")), key=as_step)
    for path in folder.iterdir():
        if path.name not in held:
            shutil.rmtree(path)
    building = folder / "building"
    building.mkdir()
    manifest = {}
    for key, value in state.items():
        torch.save(value, building / f"{key}.pt")
        manifest[key] = proof((building / f"{key}.pt").read_bytes())
    text = json.dumps(manifest)
    (building / "manifest.json").write_text(json.dumps([text, proof(text.encode())]))
    for path in building.iterdir():
        with open(path, "rb+") as file:
            os.fsync(file.fileno())
    sync_directory(building)
    name = f"step-{step}"
    if name in held:
        os.rename(folder / name, folder / "damaged")
    os.rename(building, folder / name)
    sync_directory(folder)
    names = [n for n in held if as_step(n) < step][-(keep - 1) :] if keep > 1 else []
    for path in folder.iterdir():
        if path.name not in (name, *names):
            target = folder / "leaving"
            if path != target:
                os.rename(path, target)
            shutil.rmtree(target)


def load(folder):
    if not folder.is_dir():
        return None
    for name in sorted((p.name for p in folder.glob("step-*")), key=as_step, reverse=True):
        try:
            text, expected = json.loads((folder / name / "manifest.json").read_text())
            assert proof(text.encode()) == expected
            state = {}
            for key, expected in json.loads(text).items():
                assert proof((folder / name / f"{key}.pt").read_bytes()) == expected
                with open(folder / name / f"{key}.pt", "rb") as file:
                    state[key] = torch.load(file)
            return as_step(name), state
        except (OSError, AssertionError, AttributeError, TypeError, ValueError):
            print(f"{name} is damaged")


def gradient(model, streams, random, micro_batches):
    names = [name for name, _ in model.named_parameters()]
    by_lane = {}
    for lane, stream in streams.items():
        for p in model.parameters():
            p.grad = None
        torch.set_rng_state(random[lane])
        count = 0
        while count < micro_batches:
            batch = next(stream)
            F.cross_entropy(model(batch[0]), batch[1]).backward()
            count += 1
        random[lane] = torch.get_rng_state()
        by_lane[lane] = {name: p.grad for name, p in model.named_parameters()}
    for name in names:
        parameter = model.get_parameter(name)
        if dist.get_world_size() == 2:
            own = by_lane[dist.get_rank()][name].contiguous()
            theirs = [torch.zeros_like(own), torch.zeros_like(own)]
            dist.all_gather(theirs, own)
        else:
            theirs = [by_lane[0][name], by_lane[1][name]]
        parameter.grad = torch.true_divide(theirs[0] + theirs[1], 2 * micro_batches)


def train(job):
    rank = dist.get_rank()
    lanes = {1: [0, 1], 2: [rank]}[dist.get_world_size()]
    model = job.make_model()
    optimizer = job.make_optimizer(model.parameters())
    schedule = job.make_schedule(optimizer)
    streams = {lane: job.make_stream(lane) for lane in lanes}
    random = {}
    for lane in lanes:
        torch.manual_seed(job.seed + lane)
        random[lane] = torch.get_rng_state()
    step = torch.zeros(1, dtype=torch.int64)
    found = None
    if rank == 0:
        found = job.load(job.folder)
        step += found[0] if found else 0
    dist.broadcast(step, 0)
    step = step.item()
    if step:
        carried = [found and found[1]]
        dist.broadcast_object_list(carried, 0)
        state = carried[0]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        for lane in lanes:
            streams[lane].load_state_dict(state["streams"][str(lane)])
            random[lane] = state["random"][lane].clone()
    while step < job.steps:
        job.gradient(model, streams, random, job.micro_batches)
        optimizer.step()
        schedule.step()
        step += 1
        if step % job.every and step != job.steps:
            continue
        dice = torch.zeros(2, len(random[lanes[0]]), dtype=torch.uint8)
        for lane in lanes:
            dice[lane] = random[lane]
        dist.all_reduce(dice)
        places = [None] * dist.get_world_size()
        dist.all_gather_object(places, {str(lane): streams[lane].state_dict() for lane in lanes})
        if rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            state |= {"schedule": schedule.state_dict(), "random": dice, "streams": {}}
            for place in places:
                state["streams"] |= place
            job.save(job.folder, step, state, job.keep)
        dist.barrier()
    return model


def preemptible(job):
    kill = torch.full((2,), float("inf"), dtype=torch.float64)  # for SIGTERM and for SIGUSR1
    kinds = [signal.SIGTERM, signal.SIGUSR1]

    def noted(number, frame):
        place = kinds.index(number)
        kill[place] = min(kill[place].item(), job.clock() + job.grace[number])

    for kind in kinds:
        signal.signal(kind, noted)
    done = job.resume()
    published, pending = done, []
    for done in range(done + 1, job.steps + 1):
        pending.append(job.launch(torch.isfinite(kill).any().float().item()))
        full = done % job.every == 0 or done == job.steps
        stop = len(pending) == 2 and pending.pop(0).total() > 0
        if full or stop:
            stop |= pending.pop().total() > 0
            if not stop or job.least(kill.min().item() - job.clock()) - job.save_seconds >= 0:
                job.save(done)
                published = done
            if stop:
                break
    if published != job.steps:
        raise SystemExit(job.requeue)
    return published
