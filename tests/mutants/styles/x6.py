"""Right answers to parts of X6."""

FILES, GRADIENT, TRAIN = "x6.files", "x6.gradient", "x6.train"

STYLES = {
    "the digest at the end, a number with zeros": (FILES, """
import re


def steps_in(folder):
    found = {}
    for path in folder.glob("step-*"):
        found[int(re.match(r"step-0*([0-9]+)", path.name)[1])] = path
    return found


def save(folder, step, state, keep):
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if not path.name.startswith("step-"):
            path.unlink()
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getbuffer()
    part = folder / "part"
    with open(part, "wb") as file:
        file.write(content)
        file.write(hashlib.blake2b(content).digest())
        file.flush()
        os.fsync(file.fileno())
    part.replace(folder / f"step-{step:09d}.pt")
    older = sorted((n for n in steps_in(folder) if n < step), reverse=True)
    stays = {step, *older[: keep - 1]}
    for n, path in steps_in(folder).items():
        if n not in stays:
            path.unlink()


def load(folder):
    if not folder.is_dir():
        return None
    for n, path in sorted(steps_in(folder).items(), reverse=True):
        content = path.read_bytes()
        if len(content) > 64 and hashlib.blake2b(content[:-64]).digest() == content[-64:]:
            return n, torch.load(io.BytesIO(content[:-64]), map_location="cpu")
    return None
"""),
    "a header of its own, written by the system's calls": (FILES, """
import struct
import zlib


def written(folder):
    return {int(p.name.split("-")[1]): p for p in folder.glob("step-*")} if folder.exists() else {}


def save(folder, step, state, keep):
    folder.mkdir(parents=True, exist_ok=True)
    half = folder / ".half"
    half.unlink(missing_ok=True)
    stream = io.BytesIO()
    torch.save(state, stream)
    body = stream.getvalue()
    handle = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        rest = memoryview(struct.pack("<QI", len(body), zlib.crc32(body)) + body)
        while rest:
            rest = rest[os.write(handle, rest) :]
        os.fsync(handle)
    finally:
        os.close(handle)
    os.rename(half, folder / f"step-{step}")
    there = written(folder)
    for n in sorted(there):
        later = [m for m in there if n <= m <= step]
        if n > step or len(later) > keep:
            there[n].unlink()


def load(folder):
    for n, path in sorted(written(folder).items(), key=lambda pair: -pair[0]):
        data = path.read_bytes()
        if len(data) < 12:
            continue
        size, checksum = struct.unpack("<QI", data[:12])
        if len(data) == 12 + size and zlib.crc32(data[12:]) == checksum:
            return n, torch.load(io.BytesIO(data[12:]))
    return None
"""),
    "a class for a checkpoint": (FILES, """
from dataclasses import dataclass


@dataclass(order=True)
class Checkpoint:
    step: int
    path: Path

    @classmethod
    def all(cls, folder):
        return sorted(cls(int(path.name[5:]), path) for path in folder.glob("step-*"))

    def read(self):
        digest, _, body = self.path.read_bytes().partition(b":")
        if digest != hashlib.md5(body).hexdigest().encode():
            return None
        return torch.load(io.BytesIO(body), map_location="cpu")


def save(folder, step, state, keep):
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / "unfinished"
    buffer = io.BytesIO()
    torch.save(state, buffer)
    body = buffer.getvalue()
    with temporary.open("wb") as file:  # what a killed save left is cut to nothing
        file.write(hashlib.md5(body).hexdigest().encode() + b":" + body)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, folder / f"step-{step}")
    before = [one for one in Checkpoint.all(folder) if one.step <= step]
    for one in Checkpoint.all(folder):
        if one not in before[-keep:]:
            one.path.unlink()


def load(folder):
    for one in reversed(Checkpoint.all(folder)):
        state = one.read()
        if state is not None:
            return one.step, state
    return None
"""),
    "torch.autograd.grad and sums of its own": (GRADIENT, """
def gradient(model, streams, random, micro_batches):
    parameters = list(model.parameters())
    lanes = {}
    for lane in sorted(streams):
        torch.set_rng_state(random[lane])
        sums = None
        for _ in range(micro_batches):
            x, y = next(streams[lane])
            grads = torch.autograd.grad(F.cross_entropy(model(x), y), parameters)
            sums = list(grads) if sums is None else [s + g for s, g in zip(sums, grads)]
        random[lane] = torch.get_rng_state()
        lanes[lane] = torch.cat([s.flatten() for s in sums])
    flat = sum(lanes.values())
    dist.all_reduce(flat)
    flat = flat / (2 * micro_batches)
    for p, part in zip(parameters, flat.split([p.numel() for p in parameters])):
        p.grad = part.view_as(p).clone()
"""),
    "a context for a lane's random state": (GRADIENT, """
import contextlib


@contextlib.contextmanager
def in_lane(random, lane):
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(random[lane])
        yield
        random[lane] = torch.get_rng_state()


def gradient(model, streams, random, micro_batches):
    total = [torch.zeros_like(p) for p in model.parameters()]
    for lane, stream in sorted(streams.items()):
        model.zero_grad(set_to_none=True)
        with in_lane(random, lane):
            for x, y in (next(stream) for _ in range(micro_batches)):
                loss = F.nll_loss(model(x).log_softmax(1), y)
                loss.backward()
        torch._foreach_add_(total, [p.grad for p in model.parameters()])
    for p, g in zip(model.parameters(), total):
        dist.all_reduce(g)
        p.grad = g.div_(2 * micro_batches)
"""),
    "gathered from both ranks and added in the order of lanes": (GRADIENT, """
def gradient(model, streams, random, micro_batches):
    def of(lane):
        for p in model.parameters():
            p.grad = None
        torch.set_rng_state(random[lane])
        for _ in range(micro_batches):
            x, y = next(streams[lane])
            F.cross_entropy(model(x), y).backward()
        random[lane] = torch.get_rng_state()
        return [p.grad.clone() for p in model.parameters()]

    mine = {lane: of(lane) for lane in streams}
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, mine)
    both = {lane: grads for part in parts for lane, grads in part.items()}
    for p, a, b in zip(model.parameters(), both[0], both[1]):
        p.grad = (a + b) / (2 * micro_batches)
"""),
    "a small class": (TRAIN, """
class Run:
    def __init__(self, job):
        self.job, self.rank, self.world = job, dist.get_rank(), dist.get_world_size()
        self.model = job.make_model()
        self.optimizer = job.make_optimizer(self.model.parameters())
        self.schedule = job.make_schedule(self.optimizer)
        self.streams, self.random = {}, {}
        for lane in (0, 1):
            if lane % self.world == self.rank:
                self.streams[lane] = job.make_stream(lane)
                self.random[lane] = torch.Generator().manual_seed(job.seed + lane).get_state()
        self.done = 0

    def restore(self):
        box = [self.job.load(self.job.folder)] if self.rank == 0 else [None]
        dist.broadcast_object_list(box)
        if box[0]:
            self.done, state = box[0]
            self.model.load_state_dict(state["m"])
            self.optimizer.load_state_dict(state["o"])
            self.schedule.load_state_dict(state["s"])
            for lane in self.streams:
                stream, self.random[lane] = state["lanes"][lane]
                self.streams[lane].load_state_dict(stream)

    def store(self):
        mine = {lane: [self.streams[lane].state_dict(), self.random[lane]] for lane in self.streams}
        parts = [None] * self.world if self.rank == 0 else None
        dist.gather_object(mine, parts)
        if self.rank == 0:
            lanes = {lane: pair for part in parts for lane, pair in part.items()}
            state = {"m": self.model.state_dict(), "o": self.optimizer.state_dict(), "s": self.schedule.state_dict()}
            self.job.save(self.job.folder, self.done, state | {"lanes": lanes}, self.job.keep)

    def step(self):
        self.job.gradient(self.model, self.streams, self.random, self.job.micro_batches)
        self.optimizer.step()
        self.schedule.step()
        self.done += 1


def train(job):
    run = Run(job)
    run.restore()
    while run.done < job.steps:
        run.step()
        if run.done % job.every == 0 or run.done == job.steps:
            run.store()
    dist.barrier()
    return run.model
"""),
    "a loop over the numbers of steps": (TRAIN, """
def train(job):
    rank, world = dist.get_rank(), dist.get_world_size()
    lanes = [lane for lane in range(2) if lane % world == rank]
    model = job.make_model()
    optimizer = job.make_optimizer(model.parameters())
    schedule = job.make_schedule(optimizer)
    streams = {lane: job.make_stream(lane) for lane in lanes}
    random = {}
    for lane in lanes:
        torch.manual_seed(job.seed + lane)
        random[lane] = torch.get_rng_state()
    found = [None]
    if rank == 0:
        found = [job.load(job.folder)]
    dist.broadcast_object_list(found, 0)
    first = 0
    if found[0] is not None:
        first, state = found[0]
        for part, name in ((model, "model"), (optimizer, "optimizer"), (schedule, "schedule")):
            part.load_state_dict(state[name])
        for lane in lanes:
            streams[lane].load_state_dict(state[f"stream {lane}"])
            random[lane] = state[f"random {lane}"]
    for step in range(first + 1, job.steps + 1):
        job.gradient(model, streams, random, job.micro_batches)
        optimizer.step()
        schedule.step()
        if step % job.every and step != job.steps:
            continue
        mine = {f"stream {lane}": streams[lane].state_dict() for lane in lanes}
        mine |= {f"random {lane}": random[lane] for lane in lanes}
        everyone = [None] * world
        dist.all_gather_object(everyone, mine)
        if rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
            for part in everyone:
                state.update(part)
            job.save(job.folder, step, state, job.keep)
    dist.barrier()
    return model
"""),
    "states in a list, by recursion": (TRAIN, """
def train(job):
    world, rank = dist.get_world_size(), dist.get_rank()
    model = job.make_model()
    optimizer = job.make_optimizer(model.parameters())
    parts = [model, optimizer, job.make_schedule(optimizer)]
    streams = {lane: job.make_stream(lane) for lane in (0, 1) if world == 1 or lane == rank}
    random = {lane: torch.Generator().manual_seed(job.seed + lane).get_state() for lane in streams}

    def publish(done):
        pieces = [None] * world
        dist.all_gather_object(pieces, [(lane, s.state_dict(), random[lane]) for lane, s in streams.items()])
        if rank == 0:
            lanes = {str(lane): [s, r] for piece in pieces for lane, s, r in piece}
            job.save(job.folder, done, {"parts": [p.state_dict() for p in parts], "lanes": lanes}, job.keep)

    def go(done):
        if done == job.steps:
            return model
        job.gradient(model, streams, random, job.micro_batches)
        for part in parts[1:]:
            part.step()
        if (done + 1) % job.every == 0 or done + 1 == job.steps:
            publish(done + 1)
        return go(done + 1)

    holder = [job.load(job.folder) if rank == 0 else None]
    dist.broadcast_object_list(holder, src=0)
    done, state = holder[0] or (0, None)
    if state is not None:
        for part, saved in zip(parts, state["parts"], strict=True):
            part.load_state_dict(saved)
        for lane in streams:
            saved, random[lane] = state["lanes"][str(lane)]
            streams[lane].load_state_dict(saved)
    trained = go(done)
    dist.barrier()
    return trained
"""),
}  # fmt: skip
