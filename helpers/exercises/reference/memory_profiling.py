"""The reference answers of solutions/06_memory_profiling.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import dataclasses
import itertools
import os
import pickle
import tempfile
from pathlib import Path
from helpers import COLORS, CachingAllocator, Claims, MemoryMeter, OutOfMemory, Prediction, PretendGPU, SmallGPT, check, device_name, explore, explore_timelines, hint, human_bytes, peak_table, pick_device, segments_figure, show, show_table, sign_of_life, stage_table
from helpers.virtual_gpu import beside_real_gpu, virtual_gpu
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn
from torch.cuda._memory_viz import trace_plot
from torch.utils.checkpoint import checkpoint

device = pick_device()
claims = Claims()
MiB = 2 ** 20


def replay(lifetimes, allocator):
    orders = [(life.start, 0, i) for i, life in enumerate(lifetimes)]
    orders += [(life.end, 1, i) for i, life in enumerate(lifetimes) if life.end is not None]
    blocks, log = {}, []
    for when, ends, i in sorted(orders):
        if ends:
            allocator.release(blocks.pop(i))
        else:
            blocks[i] = allocator.allocate(lifetimes[i].nbytes)
        log.append((when, allocator.allocated, allocator.reserved))
    return log


def still_there(trace, since):
    def place(frames):
        for frame in frames:
            if frame["filename"].endswith(".py") and "/torch/" not in frame["filename"]:
                return f"{frame['filename']}:{frame['line']}"
        return frames[0]["name"] if frames else "no frames"

    alive = {}  # address -> the event that allocated the block there
    for event in trace:
        if event["action"] == "alloc":
            alive[event["addr"]] = event
        elif event["action"] == "free_completed":
            alive.pop(event["addr"], None)
    left = {}
    for event in alive.values():
        if event["time_us"] >= since:
            where = place(event["frames"])
            left[where] = left.get(where, 0) + event["size"]
    return left


class SmallAllocator:
    def __init__(self, gpu):
        self.gpu, self.allocated, self.reserved = gpu, 0, 0
        self.segments = {}  # address -> (size, whether it is of the small pool)
        self.free, self.used = {}, {}  # address of a block -> (size, address of its segment)

    def allocate(self, nbytes):
        size = -(-nbytes // 512) * 512
        small = size <= MiB
        fits = [(n, at) for at, (n, seg) in self.free.items() if n >= size and self.segments[seg][1] == small]
        at = min(fits)[1] if fits else self.grow(size, small)
        whole, seg = self.free.pop(at)
        rest = whole - size
        if rest >= 512 if small else rest > MiB:
            self.free[at + size] = rest, seg
            whole = size
        self.used[at] = whole, seg
        self.allocated += whole
        return at

    def grow(self, size, small):
        """Return the address of a new segment, which is one free block."""
        nbytes = 2 * MiB if small else 20 * MiB if size < 10 * MiB else -(-size // (2 * MiB)) * 2 * MiB
        try:
            at = self.gpu.malloc(nbytes)
        except OutOfMemory:
            for unused in [at for at, (n, seg) in self.free.items() if n == self.segments[seg][0]]:
                self.gpu.free(unused)
                self.reserved -= self.free.pop(unused)[0]
            at = self.gpu.malloc(nbytes)
        self.segments[at], self.free[at] = (nbytes, small), (nbytes, at)
        self.reserved += nbytes
        return at

    def release(self, address):
        size, seg = self.used.pop(address)
        self.allocated -= size
        for at, (n, segment) in list(self.free.items()):
            if segment == seg and at + n == address:
                del self.free[at]
                address, size = at, n + size
            elif segment == seg and address + size == at:
                del self.free[at]
                size += n
        self.free[address] = size, seg
