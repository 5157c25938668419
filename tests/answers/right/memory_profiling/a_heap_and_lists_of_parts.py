# a heap and lists of parts

import collections
import heapq
from dataclasses import dataclass, field

from helpers import OutOfMemory


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
