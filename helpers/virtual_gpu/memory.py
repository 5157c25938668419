"""The memory of each pretended GPU: PyTorch's caching allocator, as the planner models it, fed with real tensors.

Allocated bytes are exact, rounded up to 512 as CUDA's allocator does. Reserved bytes are the model's.
"""

import os
import re
import time
from typing import Any, Protocol

import torch

from ..planner.allocator import CachingAllocator, OutOfMemory
from .history import History
from .machine import Machine

_gpus: dict[int, "GpuMemory"] = {}
watch: "Watch | None" = None
log: list[tuple[int, int, int, int]] | None = None  # (ns, address, bytes, GPU) of each change while a profiler runs
machine: Machine | None = None
history = History()


def expandable_segments() -> bool:
    """Say whether the environment asks for segments that grow."""
    asked = os.environ.get("PYTORCH_ALLOC_CONF", "") + os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
    return "expandable_segments:True" in asked


class Watch(Protocol):
    """Is told of every allocation, and of every refusal."""

    def born(self, index: int, nbytes: int) -> Any:
        """Return a record of `nbytes` that GPU `index` has given."""

    def died(self, record: Any) -> None:
        """Take note that the bytes of a record are free again."""

    def refused(self, index: int, nbytes: int) -> None:
        """Take note that GPU `index` has refused `nbytes`."""


class GpuMemory:
    """The allocator of one GPU, with the counters that `torch.cuda.memory_stats` shows."""

    def __init__(self, index: int, capacity: int) -> None:
        self._index, self._capacity = index, capacity
        self.cache = CachingAllocator(capacity, expandable_segments())
        self.requests = self.releases = self.failures = self.total_bytes = self.peak_blocks = 0

    def allocate(self, address: int, nbytes: int) -> Any:
        """Return the block for a storage.

        Raises:
            torch.OutOfMemoryError: it does not fit.
        """
        try:
            block = self.cache.allocate(nbytes)
        except OutOfMemory:
            self.refuse(nbytes)
        self.requests += 1
        self.total_bytes += block.size
        self.peak_blocks = max(self.peak_blocks, self.requests - self.releases)
        if log is not None:
            log.append((time.perf_counter_ns(), address, block.size, self._index))
        history.add(self._index, "alloc", address, nbytes)
        return block

    def release(self, address: int, block: Any) -> None:
        """Take the block of a storage back."""
        size = block.size
        self.cache.release(block)
        self.releases += 1
        if log is not None:
            log.append((time.perf_counter_ns(), address, -size, self._index))
        history.add(self._index, "free_completed", address, size)

    def refuse(self, nbytes: int) -> None:
        """Count a failure, and say so.

        Raises:
            torch.OutOfMemoryError: always.
        """
        self.failures += 1
        if watch is not None:
            watch.refused(self._index, nbytes)
        history.add(self._index, "oom", 0, nbytes, device_free=self.free)
        raise torch.OutOfMemoryError(self._apology(nbytes))

    @property
    def free(self) -> int:
        """Bytes that no segment has taken yet."""
        return self._capacity - self.cache.reserved

    def has_room(self, nbytes: int) -> bool:
        """Say whether the GPU could hold `nbytes` more."""
        return self.cache.allocated + nbytes <= self.cache.capacity

    def limit(self, fraction: float) -> None:
        """Let segments take at most `fraction` of the GPU's memory, as `set_per_process_memory_fraction` does."""
        self.cache.capacity = min(self._capacity, int(fraction * machine.total_memory))

    def reset_peaks(self) -> None:
        """Let the peaks begin anew from what is held now."""
        cache = self.cache
        cache.peak_allocated, cache.peak_reserved = cache.allocated, cache.reserved
        self.peak_blocks = self.requests - self.releases

    def _apology(self, nbytes: int) -> str:
        """Return CUDA's words, as `c10/cuda/CUDACachingAllocator.cpp` has them."""
        cache = self.cache
        free = self.free
        in_use = machine.total_memory - free
        allowed = f"{_size(cache.capacity)} allowed; " if cache.capacity < self._capacity else ""
        return (
            f"CUDA out of memory. Tried to allocate {_size(nbytes)}. GPU {self._index} has a total capacity of "
            f"{_size(machine.total_memory)} of which {_size(free)} is free. Including non-PyTorch memory, this process "
            f"has {_size(in_use)} memory in use. {allowed}Of the allocated memory {_size(cache.allocated)} is "
            f"allocated by PyTorch, and {_size(cache.reserved - cache.allocated)} is reserved by PyTorch but "
            "unallocated. If reserved but unallocated memory is large try setting "
            "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory "
            "Management  "
            "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
        )


def _size(nbytes: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if nbytes > unit:
            return f"{nbytes / unit:.2f} {name}"
    return f"{nbytes} bytes"


def gpu(index: int) -> GpuMemory:
    """Return the memory of GPU `index`, which is made when it is first asked for, as CUDA's context is."""
    if index not in _gpus:
        _gpus[index] = GpuMemory(index, machine.total_memory - machine.context)
    return _gpus[index]


def refuse_what_no_gpu_holds(index: int, error: RuntimeError) -> None:
    """Let GPU `index` refuse what the CPU had no memory for, if it would have been too much for the GPU as well.

    Raises:
        torch.OutOfMemoryError: it would.
    """
    asked = re.search(r"you tried to allocate (\d+) bytes", str(error))
    if asked and not gpu(index).has_room(int(asked[1])):
        gpu(index).refuse(int(asked[1]))


def statistics(index: int) -> dict[str, Any]:
    """Return what `torch._C._cuda_memoryStats` returns: nested counters."""
    memory, cache = gpu(index), gpu(index).cache

    def counter(current: int, peak: int, allocated: int = 0) -> dict[str, dict[str, int]]:
        figures = {"current": current, "peak": peak, "allocated": allocated, "freed": max(0, allocated - current)}
        nothing = dict.fromkeys(figures, 0)
        return {"all": figures, "large_pool": nothing, "small_pool": nothing}

    in_bytes = counter(cache.allocated, cache.peak_allocated, memory.total_bytes)
    in_blocks = counter(memory.requests - memory.releases, memory.peak_blocks, memory.requests)
    reserved = counter(cache.reserved, cache.peak_reserved, cache.peak_reserved)
    nothing = counter(0, 0)
    return {
        "allocation": in_blocks,
        "active": in_blocks,
        "segment": nothing,
        "inactive_split": nothing,
        "allocated_bytes": in_bytes,
        "active_bytes": in_bytes,
        "requested_bytes": in_bytes,
        "reserved_bytes": reserved,
        "inactive_split_bytes": nothing,
        "oversize_allocations": nothing["all"],
        "oversize_segments": nothing["all"],
        "num_alloc_retries": cache.retries,
        "num_ooms": memory.failures,
        "num_sync_all_streams": 0,
        "num_device_alloc": 0,
        "num_device_free": 0,
        "max_split_size": -1,
    }


def forget() -> None:
    """Drop the memories of all GPUs: the machine is no longer there."""
    global machine, log, watch
    _gpus.clear()
    history.start(None, None, "", 0)
    machine = log = watch = None
