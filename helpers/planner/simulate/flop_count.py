"""The meter's count on fake tensors, with the work of each operation and the scratch memory of CUDA's kernels."""

import itertools
from typing import Any

from torch import Tensor

from ...meter.count import Block, Count
from ...meter.flops import flops_of
from .cuda_kernels import scratch_bytes
from .work_count import WorkCount

HOST = "host"  # category of what offloading keeps off the GPU


class FlopCount(Count):
    """Counts blocks, FLOPs and work; its clock ticks once an event.

    Args:
        offloads: whether parameters live on the host, so that each gathering brings this rank's shards to the GPU.
        compiled: whether a compiler fuses chains of operations, in the work; blocks are those of eager mode.
    """

    def __init__(self, offloads: bool, compiled: bool) -> None:
        ticks = itertools.count(1)
        super().__init__("cpu", lambda: next(ticks), lambda storage: storage._cdata)
        self.flops = self.recomputed_flops = 0
        self.offloads = offloads
        self.work = WorkCount(compiled, self.track)
        self.now = self._clock

    def observe(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Count the work of an operation, and its scratch memory as a block that lives as long as it runs."""
        flops = flops_of(func, args, kwargs, result)
        self.flops += flops
        self.recomputed_flops += flops if self._recomputing else 0
        self.work.see((func, args, kwargs, result), self._op, self._recomputing)
        nbytes = scratch_bytes(func, args)
        if self.offloads and self._op.name.startswith("fsdp.all_gather_copy_in"):
            nbytes = sum(t.numel() * t.element_size() for t in args[0])  # the shards, on their way from the host
        if nbytes:
            block = Block(0, nbytes, "kernel workspace", self._clock(), self._op)
            block.end = self._clock()
            self.blocks.append(block)

    def move_to_host(self, parameters: list[Tensor]) -> None:
        """Count the shards of `parameters` and of their gradients as the host's."""
        for parameter in parameters:
            self.track(parameter, HOST)
            self.track(parameter.grad, HOST)
