# by ends of blocks

import math

from helpers.exercises.reference.memory_profiling import OutOfMemory

UNIT, MEGA = 512, 1024 * 1024


class Pool:
    """Free blocks by where they begin and by where they end; an end is noted with its segment."""

    def __init__(self, least, size_of_segment):
        self.least, self.size_of_segment = least, size_of_segment
        self.begins, self.ends = {}, {}

    def add(self, segment, begin, end):
        if (segment, begin) in self.ends:
            begin = self.drop(segment, self.ends[segment, begin])[0]
        if (segment, end) in self.begins:
            end = self.drop(segment, end)[1]
        self.begins[segment, begin], self.ends[segment, end] = end, begin

    def drop(self, segment, begin):
        end = self.begins.pop((segment, begin))
        del self.ends[segment, end]
        return begin, end


class SmallAllocator:
    def __init__(self, gpu):
        self.gpu = gpu
        self.sizes, self.blocks = {}, {}
        self.small = Pool(UNIT, lambda size: 2 * MEGA)
        self.large = Pool(MEGA + UNIT, self.for_large)

    reserved = property(lambda self: sum(self.sizes.values()))
    allocated = property(lambda self: sum(end - begin for begin, (_, _, end) in self.blocks.items()))

    @staticmethod
    def for_large(size):
        return 20 * MEGA if size < 10 * MEGA else math.ceil(size / (2 * MEGA)) * 2 * MEGA

    def allocate(self, nbytes):
        size = math.ceil(nbytes / UNIT) * UNIT
        pool = self.large if size > MEGA else self.small
        order = sorted((end - begin, begin, segment) for (segment, begin), end in pool.begins.items())
        for length, begin, segment in order:
            if length >= size:
                pool.drop(segment, begin)
                break
        else:
            length = pool.size_of_segment(size)
            begin = segment = self.ask(length)
            self.sizes[segment] = length
        end = begin + length
        if length - size >= pool.least:
            end = begin + size
            pool.add(segment, end, begin + length)
        self.blocks[begin] = pool, segment, end
        return begin

    def ask(self, length):
        try:
            return self.gpu.malloc(length)
        except OutOfMemory:
            for pool in (self.small, self.large):
                for (segment, begin), end in list(pool.begins.items()):
                    if end - begin == self.sizes[segment]:
                        pool.drop(segment, begin)
                        self.gpu.free(segment)
                        del self.sizes[segment]
        return self.gpu.malloc(length)

    def release(self, address):
        pool, segment, end = self.blocks.pop(address)
        pool.add(segment, address, end)
