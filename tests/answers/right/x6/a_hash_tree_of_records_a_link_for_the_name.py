# a hash tree of records, a link for the name

import hashlib
import io
import math
import os
import pathlib
import shutil
import signal

import torch
import torch.distributed as dist
import torch.nn.functional as F


def sync_directory(folder):
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def save(folder, step, state, keep):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for junk in set(folder.iterdir()) - set(folder.glob("step-*")):
        shutil.rmtree(junk)
    scratch, ready = folder / "scratch", folder / "ready"
    scratch.mkdir()
    ready.mkdir()
    leaves = {}
    for name in state:
        record = io.BytesIO()
        torch.save(state[name], record)
        leaves[f"{name}.pt"] = hashlib.blake2b(record.getvalue(), digest_size=32).hexdigest()
        (scratch / f"{name}.pt").write_bytes(record.getvalue())
    tree = "\n".join(f"{digest} {name}" for name, digest in leaves.items())
    (scratch / "tree").write_text(hashlib.blake2b(tree.encode()).hexdigest() + "\n" + tree)
    for file in scratch.iterdir():
        with file.open("rb") as written:
            os.fsync(written.fileno())
        os.link(file, ready / file.name)
    sync_directory(ready)
    target = folder / f"step-{step}"
    if target.exists():
        target.rename(folder / "replaced")
    ready.rename(target)
    sync_directory(folder)
    steps = sorted(int(path.name[5:]) for path in folder.glob("step-*"))
    below = [n for n in steps if n <= step]
    for n in steps:
        if n not in below[-keep:]:
            (folder / f"step-{n}").rename(folder / f"gone-{n}")
    for junk in set(folder.iterdir()) - set(folder.glob("step-*")):
        shutil.rmtree(junk)


def whole(path):
    root, *lines = (path / "tree").read_text().split("\n")
    if hashlib.blake2b("\n".join(lines).encode()).hexdigest() != root:
        raise ValueError(path)
    state = {}
    for line in lines:
        digest, name = line.split(" ", 1)
        record = (path / name).read_bytes()
        if hashlib.blake2b(record, digest_size=32).hexdigest() != digest:
            raise ValueError(path)
        state[name[:-3]] = torch.load(io.BytesIO(record))
    return state


def load(folder):
    candidates = {int(path.name[5:]): path for path in pathlib.Path(folder).glob("step-*")}
    for step, path in sorted(candidates.items(), key=lambda item: -item[0]):
        try:
            return step, whole(path)
        except (ValueError, OSError):
            pass
    return None


def gradient(model, streams, random, micro_batches):
    parameters = tuple(model.parameters())
    before = torch.get_rng_state()
    totals = [torch.zeros_like(p) for p in parameters]
    for number, lane in enumerate(streams):
        for p in parameters:
            p.grad = torch.zeros_like(p)
        torch.set_rng_state(random[lane])
        for _ in range(micro_batches):
            x, y = next(streams[lane])
            F.nll_loss(F.log_softmax(model(x), dim=-1), y).backward()
        random[lane] = torch.get_rng_state()
        totals = [t + p.grad if number else p.grad.clone() for t, p in zip(totals, parameters)]
    torch.set_rng_state(before)
    flat = torch.nn.utils.parameters_to_vector(totals)
    dist.all_reduce(flat)
    flat /= micro_batches + micro_batches
    start = 0
    for p in parameters:
        p.grad = flat[start : start + p.numel()].reshape(p.shape)
        start += p.numel()


def train(job):
    rank, size = dist.get_rank(), dist.get_world_size()
    model = job.make_model()
    optimizer = job.make_optimizer([p for p in model.parameters() if p.requires_grad])
    schedule = job.make_schedule(optimizer)
    my_lanes = [lane for lane in (0, 1) if lane % size == rank]
    streams = {lane: job.make_stream(lane) for lane in my_lanes}
    seeded = [torch.Generator().manual_seed(job.seed + lane).get_state() for lane in (0, 1)]
    random = {lane: seeded[lane] for lane in my_lanes}
    news = [None, None]
    if rank == 0:
        news = list(job.load(job.folder) or (0, None))
    dist.broadcast_object_list(news, src=0)
    done, old = news
    if old is not None:
        model.load_state_dict(old["model"], assign=False)
        optimizer.load_state_dict(old["optimizer"])
        schedule.load_state_dict(old["schedule"])
        for lane in my_lanes:
            random[lane] = old["random"][lane]
            streams[lane].load_state_dict(old["streams"][lane])
    for step in range(done, job.steps):
        job.gradient(model, streams, random, job.micro_batches)
        optimizer.step()
        schedule.step()
        finished = step + 1
        due = finished % job.every == 0
        if due or finished == job.steps:
            pieces = [None] * size
            dist.all_gather_object(pieces, [(lane, streams[lane].state_dict(), random[lane]) for lane in my_lanes])
            flattened = sorted((entry for piece in pieces for entry in piece), key=lambda entry: entry[0])
            if rank == 0:
                new = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                new["schedule"] = schedule.state_dict()
                new["streams"] = [place for _, place, _ in flattened]
                new["random"] = [dice for _, _, dice in flattened]
                job.save(job.folder, finished, new, job.keep)
            dist.barrier()
    return model


def preemptible(job):
    deadlines = []
    for number in job.grace:
        signal.signal(number, lambda n, _: deadlines.append(job.clock() + job.grace[n]))
    return go_on(job, deadlines, job.resume(), None)


def go_on(job, deadlines, done, last):
    """One step, and by recursion those that follow it."""
    if done == job.steps:
        return done
    running = job.launch(1.0 if deadlines else 0.0)
    totals = [last.total()] if last else []
    due = (done + 1) % job.every == 0 or done + 1 == job.steps
    if due or any(totals):
        totals.append(running.total())
        fits = not any(totals) or job.least(min([*deadlines, math.inf]) - job.clock()) >= job.save_seconds
        if fits:
            job.save(done + 1)
        if any(totals) and not (fits and done + 1 == job.steps):
            raise SystemExit(job.requeue)
        running = None
    return go_on(job, deadlines, done + 1, running)
