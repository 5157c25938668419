# linked blocks

from helpers import OutOfMemory

MiB = 2**20


def replay(lifetimes, allocator):
    begins = sorted(lifetimes, key=lambda life: -life.start)
    ends = sorted((life for life in lifetimes if life.end is not None), key=lambda life: -life.end)
    held, log = {}, []
    while begins or ends:
        if begins and (not ends or begins[-1].start <= ends[-1].end):
            life = begins.pop()
            held[id(life)], now = allocator.allocate(life.nbytes), life.start
        else:
            life = ends.pop()
            now = life.end
            allocator.release(held.pop(id(life)))
        log += [(now, allocator.allocated, allocator.reserved)]
    return log


def place_of(event):
    mine = [f for f in event["frames"] if f["filename"].endswith(".py") and not f["filename"].count("/torch/")]
    if mine:
        return ":".join([mine[0]["filename"], str(mine[0]["line"])])
    return next((frame["name"] for frame in event["frames"]), "no frames")


def still_there(trace, since):
    last = {event["addr"]: event for event in trace if event["action"] in ("alloc", "free_completed")}
    left = [e for e in last.values() if e["action"] == "alloc" and e["time_us"] >= since]
    lines = {place_of(e) for e in left}
    return {line: sum(e["size"] for e in left if place_of(e) == line) for line in lines}


class Block:
    def __init__(self, address, size, small):
        self.address, self.size, self.small = address, size, small
        self.left = self.right = None

    def absorb(self, right):
        self.size += right.size
        self.right = right.right
        if right.right is not None:
            right.right.left = self


class SmallAllocator:
    def __init__(self, gpu):
        self.gpu = gpu
        self.allocated = self.reserved = 0
        self.free, self.busy = set(), {}

    def allocate(self, nbytes):
        size = nbytes + (-nbytes) % 512
        small = size <= MiB
        candidates = {block for block in self.free if block.small == small and block.size >= size}
        block = min(candidates, key=lambda b: (b.size, b.address), default=None) or self.new_segment(size, small)
        self.free.discard(block)
        if block.size - size > (0 if small else MiB):
            rest = Block(block.address + size, block.size - size, small)
            rest.left, rest.right = block, block.right
            if rest.right is not None:
                rest.right.left = rest
            block.right, block.size = rest, size
            self.free.add(rest)
        self.busy[block.address] = block
        self.allocated += block.size
        return block.address

    def new_segment(self, size, small):
        if small:
            wanted = 2 * MiB
        elif size < 10 * MiB:
            wanted = 20 * MiB
        else:
            wanted = 2 * MiB * ((size + 2 * MiB - 1) // (2 * MiB))
        try:
            address = self.gpu.malloc(wanted)
        except OutOfMemory:
            address = None
        if address is None:
            unused = {block for block in self.free if block.left is None and block.right is None}
            for block in unused:
                self.gpu.free(block.address)
            self.reserved -= sum(block.size for block in unused)
            self.free -= unused
            address = self.gpu.malloc(wanted)
        self.reserved += wanted
        return Block(address, wanted, small)

    def release(self, address):
        block = self.busy.pop(address)
        self.allocated -= block.size
        if block.right in self.free:
            self.free.remove(block.right)
            block.absorb(block.right)
        if block.left in self.free:
            block.left.absorb(block)
            block = block.left
        self.free.add(block)
