# sorted pools

import bisect

from helpers import OutOfMemory

MiB = 2**20


def replay(lifetimes, allocator):
    times = sorted({t for life in lifetimes for t in (life.start, life.end) if t is not None})
    held, log = [], []
    for now in times:
        for life in lifetimes:
            if life.start == now:
                held.append((life, allocator.allocate(life.nbytes)))
                log.append((now, allocator.allocated, allocator.reserved))
        for life, block in list(held):
            if life.end == now:
                allocator.release(block)
                held.remove((life, block))
                log.append((now, allocator.allocated, allocator.reserved))
    return log


def place_of(event):
    for frame in event["frames"]:
        name = frame["filename"]
        if name[-3:] == ".py" and "torch" not in name.split("/"):
            return name + ":" + str(frame["line"])
    return event["frames"][0]["name"] if len(event["frames"]) > 0 else "no frames"


def still_there(trace, since):
    ends = {}
    left = {}
    for event in reversed(trace):  # from the end: a free belongs to the alloc before it
        if event["action"] == "free_completed":
            ends[event["addr"]] = ends.get(event["addr"], 0) + 1
        elif event["action"] == "alloc":
            if ends.get(event["addr"], 0):
                ends[event["addr"]] -= 1
            elif event["time_us"] >= since:
                left.setdefault(place_of(event), []).append(event["size"])
    return {name: sum(sizes) for name, sizes in left.items()}


class SmallAllocator:
    def __init__(self, gpu):
        self.gpu = gpu
        self.allocated = 0
        self.reserved = 0
        self.pools = {"small": [], "large": []}  # of each, sorted: (size, address, segment, size of the segment)
        self.taken = {}

    def allocate(self, nbytes):
        units = (nbytes + 511) // 512
        size = units * 512
        pool = "small" if units <= 2048 else "large"
        free = self.pools[pool]
        place = bisect.bisect_left(free, (size,))
        if place == len(free):
            free.insert(place, self.from_gpu(size, pool))
            free.sort()
            place = bisect.bisect_left(free, (size,))
        length, address, segment, whole = free.pop(place)
        least = 512 if pool == "small" else MiB + 1
        if length - size >= least:
            bisect.insort(free, (length - size, address + size, segment, whole))
            length = size
        self.taken[address] = pool, length, segment, whole
        self.allocated += length
        return address

    def from_gpu(self, size, pool):
        whole = {"small": 2 * MiB}.get(pool, 20 * MiB)
        if size >= 10 * MiB:
            whole = (size + 2 * MiB - 1) // (2 * MiB) * (2 * MiB)
        for last in (False, True):
            try:
                address = self.gpu.malloc(whole)
                break
            except OutOfMemory:
                if last:
                    raise
                self.empty()
        self.reserved += whole
        return whole, address, address, whole

    def empty(self):
        for free in self.pools.values():
            for entry in [entry for entry in free if entry[0] == entry[3]]:
                free.remove(entry)
                self.gpu.free(entry[2])
                self.reserved -= entry[3]

    def release(self, address):
        pool, length, segment, whole = self.taken.pop(address)
        self.allocated -= length
        free = self.pools[pool]
        end = address + length
        for entry in [entry for entry in free if entry[2] == segment]:
            if entry[1] + entry[0] == address:
                free.remove(entry)
                address = entry[1]
            elif entry[1] == end:
                free.remove(entry)
                end += entry[0]
        bisect.insort(free, (end - address, address, segment, whole))
