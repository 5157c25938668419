# inference mode and groups

import collections
import heapq
from dataclasses import dataclass, field

from helpers import OutOfMemory

import torch
import torch.nn.functional as F


class Orders:
    def __init__(self, lifetimes, allocator):
        self.allocator, self.entries = allocator, []
        self.waiting = [(life.start, False, number, life) for number, life in enumerate(lifetimes)]
        heapq.heapify(self.waiting)

    def begin(self, now, number, life):
        block = self.allocator.allocate(life.nbytes)
        if life.end is not None:
            heapq.heappush(self.waiting, (life.end, True, number, block))

    def run(self):
        while self.waiting:
            now, over, number, what = heapq.heappop(self.waiting)
            if over:
                self.allocator.release(what)
            else:
                self.begin(now, number, what)
            self.entries.append([now, self.allocator.allocated, self.allocator.reserved])
        return self.entries


def replay(lifetimes, allocator):
    return Orders(lifetimes, allocator).run()


def place_of(event):
    own = (f for f in event["frames"] if f["filename"].endswith(".py") and "/torch/" not in f["filename"])
    frame = next(own, None)
    if frame is None:
        return event["frames"][0]["name"] if event["frames"] else "no frames"
    return "{filename}:{line}".format(**frame)


class Books:
    def __init__(self, since):
        self.since, self.blocks = since, {}

    def alloc(self, event):
        self.blocks[event["addr"]] = event["time_us"], place_of(event), event["size"]

    def free_completed(self, event):
        self.blocks.pop(event["addr"], None)

    def left(self):
        total = collections.Counter()
        for when, name, size in self.blocks.values():
            if not when < self.since:
                total[name] += size
        return total


def still_there(trace, since):
    books = Books(since)
    for event in trace:
        getattr(books, event["action"], lambda event: None)(event)
    return books.left()


def train_and_log(model, optimizer, batches):
    def step(ids):
        optimizer.zero_grad(set_to_none=True)
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return float(loss)

    return [step(ids) for ids in batches]


class _Chunk(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, targets):
        gradient_hidden, gradient_weight, total = torch.empty_like(hidden), torch.zeros_like(weight), 0.0
        for start in range(0, len(hidden), 100):
            rows = slice(start, start + 100)
            logits = hidden[rows] @ weight.T
            total += F.cross_entropy(logits, targets[rows], reduction="sum").item()
            logits = logits.softmax(-1)
            logits[torch.arange(len(logits)), targets[rows]] -= 1
            gradient_hidden[rows] = logits @ weight
            gradient_weight += logits.T @ hidden[rows]
        ctx.save_for_backward(gradient_hidden / len(hidden), gradient_weight / len(hidden))
        return hidden.new_tensor(total / len(hidden))

    @staticmethod
    def backward(ctx, upstream):
        a, b = ctx.saved_tensors
        return a * upstream, b * upstream, None


def head_loss(head, hidden, targets):
    return _Chunk.apply(hidden, head.weight, targets)


def evaluate(model, batches):
    with torch.inference_mode():
        total = sum(F.cross_entropy(model(b[:, :-1]).flatten(0, 1), b[:, 1:].flatten()).item() for b in batches)
    return total / len(batches)


def make_optimizer(parameters):
    return torch.optim.Adam([{"params": [p]} for p in parameters], foreach=False)


def log_means(model, means):
    for name, module in model.named_modules():
        if not any(True for _ in module.children()):
            module.register_forward_hook(lambda m, i, out, name=name: means.__setitem__(name, float(out.mean())))


def train(model, optimizer, batches):
    def step(inputs, targets):
        loss = (model(inputs) - targets).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return [step(*pair) for pair in batches]


@dataclass
class Stretch:
    start: int
    length: int
    busy: bool = False


@dataclass
class Segment:
    start: int
    length: int
    small: bool
    parts: list = field(default_factory=list)


class SmallAllocator:
    def __init__(self, gpu):
        self.gpu, self.segments = gpu, []

    @property
    def reserved(self):
        return sum(segment.length for segment in self.segments)

    @property
    def allocated(self):
        return sum(part.length for segment in self.segments for part in segment.parts if part.busy)

    def allocate(self, nbytes):
        size = 512 * ((nbytes - 1) // 512 + 1)
        small = size <= 1 << 20
        found = self.search(size, small)
        if found is None:
            self.enlarge(size, small)
            found = self.search(size, small)
        segment, index = found
        part = segment.parts[index]
        part.busy = True
        rest = part.length - size
        if rest and (small or rest > 1 << 20):
            part.length = size
            segment.parts.insert(index + 1, Stretch(part.start + size, rest))
        return part.start

    def search(self, size, small):
        best = None
        for segment in sorted(self.segments, key=lambda segment: segment.start):
            if segment.small is not small:
                continue
            for index, part in enumerate(segment.parts):
                if part.busy or part.length < size:
                    continue
                if best is None or part.length < best[0].parts[best[1]].length:
                    best = segment, index
        return best

    def enlarge(self, size, small):
        unit = 1 << 21
        length = unit if small else 10 * unit
        if size >= 5 * unit:
            length = size + -size % unit
        try:
            start = self.gpu.malloc(length)
        except OutOfMemory:
            for segment in list(self.segments):
                if not any(part.busy for part in segment.parts):
                    self.gpu.free(segment.start)
                    self.segments.remove(segment)
            start = self.gpu.malloc(length)
        self.segments.append(Segment(start, length, small, [Stretch(start, length)]))

    def release(self, address):
        for segment in self.segments:
            for part in segment.parts:
                if part.start == address and part.busy:
                    part.busy = False
                    self.join(segment)
                    return

    def join(self, segment):
        joined = []
        for part in segment.parts:
            if joined and not part.busy and not joined[-1].busy:
                joined[-1].length += part.length
            else:
                joined.append(part)
        segment.parts = joined
