# a hash tree of records, a link for the name

import hashlib
import io
import os
import pathlib

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
        junk.unlink()
    scratch = folder / "scratch"
    records = []
    for name in state:
        record = io.BytesIO()
        torch.save({name: state[name]}, record)
        records.append(record.getvalue())
    with scratch.open("wb") as out:
        for record in records:
            header = f"{len(record):020d}".encode() + hashlib.blake2b(record, digest_size=32).digest()
            out.write(header + record)
        out.write(f"{len(records):020d}".encode())
        out.flush()
        os.fsync(out.fileno())
    target = folder / f"step-{step}"
    target.unlink(missing_ok=True)
    os.link(scratch, target)
    sync_directory(folder)
    scratch.unlink()
    steps = sorted(int(path.name[5:]) for path in folder.glob("step-*"))
    below = [n for n in steps if n <= step]
    for n in steps:
        if n not in below[-keep:]:
            (folder / f"step-{n}").unlink()


def whole(path):
    raw, at, state, count = path.read_bytes(), 0, {}, 0
    while at + 20 < len(raw):
        length = int(raw[at : at + 20])
        digest, record = raw[at + 20 : at + 52], raw[at + 52 : at + 52 + length]
        if hashlib.blake2b(record, digest_size=32).digest() != digest:
            raise ValueError(path)
        state.update(torch.load(io.BytesIO(record)))
        at, count = at + 52 + length, count + 1
    if len(raw) - at != 20 or int(raw[at:]) != count:
        raise ValueError(path)
    return state


def load(folder):
    candidates = {int(path.name[5:]): path for path in pathlib.Path(folder).glob("step-*")}
    for step, path in sorted(candidates.items(), key=lambda item: -item[0]):
        try:
            return step, whole(path)
        except ValueError:
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
