"""A memory meter that is true on any machine.

Two instruments run side by side and each does what the other cannot.

*The allocator's log* knows every byte. PyTorch's profiler reports each allocation and each release (address,
size, time), on the CPU as well as on a GPU. The peak is read from it.

*The count* knows whose bytes they are. A `TorchDispatchMode` sees every tensor that an operation takes or
returns; hooks say which of them autograd saved for backward, which became gradients, which belong to the
optimizer.

The two are joined by address. What the allocator held and no tensor explains is the scratch space of a kernel:
a tenant of its own, **kernel workspace**. Where there is no allocator log (Apple's GPU, or a profiler that is
already in use), the count alone gives the figures, and `method` says so.
"""

import bisect
import html
import time
import weakref
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .device import pick_device
from .figures import memory_timeline
from .units import human_bytes

TENANTS = (
    "parameters",
    "gradients",
    "optimizer state",
    "weight copies",  # 16-bit casts of the parameters that autocast makes and keeps
    "activations",  # saved for the backward pass
    "temporaries",
    "kernel workspace",
    "inputs and other",
)
CUDA_ROUNDING = 512  # CUDA's caching allocator hands out multiples of this many bytes


class _Block:
    """One stretch of memory behind tensors: a storage, from when it was first seen to its end."""

    __slots__ = ("address", "died", "nbytes", "seen", "tenant")

    def __init__(self, address: int, nbytes: int, tenant: str) -> None:
        self.address, self.nbytes, self.tenant = address, nbytes, tenant
        self.seen = time.time_ns()
        self.died: int | None = None

    def end(self) -> None:
        if self.died is None:
            self.died = time.time_ns()


class _Count(TorchDispatchMode):
    """Keeps a block for each storage that any operation touches, without keeping the storage alive."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.blocks: list[_Block] = []
        self.ops: list[tuple[int, str]] = []  # (start in ns, "phase: name")
        self.stepping = False
        self._live: dict[int, _Block] = {}
        self._finalizers: list[weakref.finalize] = []

    def see(self, tensor: object, tenant: str | None = None) -> _Block | None:
        """Find or make the block of `tensor`; a `tenant` given is written on it."""
        if not isinstance(tensor, Tensor) or tensor.device.type != self.device.type:
            return None
        try:
            storage = tensor.untyped_storage()
            address = storage.data_ptr()
        except (NotImplementedError, RuntimeError):  # sparse and fake tensors have no storage to speak of
            return None
        if not address:
            return None
        key = storage._cdata
        block = self._live.get(key)
        if block is None or block.address != address:  # new, or resized to another place
            if block is None:
                self._finalizers.append(weakref.finalize(storage, self._end, key))
            else:
                block.end()
                tenant = tenant or block.tenant
            block = self._live[key] = _Block(address, storage.nbytes(), tenant or "temporaries")
            self.blocks.append(block)
        elif tenant:
            block.tenant = tenant
        return block

    def _end(self, key: int) -> None:
        self._live.pop(key).end()

    def keep(self, tensor: Tensor) -> tuple[Tensor, int]:
        """Hook of autograd: `tensor` is being kept for the backward pass.

        It is handed on detached (an operation that saves its own output would else hold itself alive for ever), and
        with its version, which autograd leaves to its hooks to compare.
        """
        block = self.see(tensor)
        if block and block.tenant == "temporaries":
            block.tenant = "activations"
        return tensor.detach(), tensor._version

    @staticmethod
    def fetch(kept: tuple[Tensor, int]) -> Tensor:
        """Hook of autograd: the backward pass wants what `keep` returned."""
        tensor, version = kept
        if tensor._version != version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"{list(tensor.shape)} is at version {tensor._version}; expected version {version} instead."
            )
        return tensor

    def phase(self) -> str:
        if self.stepping:
            return "optimizer step"
        return "forward" if torch._C._current_graph_task_id() == -1 else "backward"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = [self.see(leaf) for leaf in tree_leaves((args, kwargs))]
        if func is not torch.ops.aten.detach.default:
            self.ops.append((time.time_ns(), f"{self.phase()}: {func}"))
        outputs = func(*args, **(kwargs or {}))
        source = inputs[0] if func is torch.ops.aten._to_copy.default else None  # None too for tensors elsewhere
        casts_parameter = source is not None and source.tenant == "parameters"
        for leaf in tree_leaves(outputs):
            self.see(leaf, "weight copies" if casts_parameter else None)
        return outputs

    def close(self) -> None:
        for finalizer in self._finalizers:
            finalizer.detach()


@dataclass
class _Lifetime:
    """One allocation of the allocator's log, from `start` to `end` (ns; None: outlived the meter)."""

    start: int
    end: int | None
    nbytes: int
    tenant: str


class MemoryMeter:
    """Measures the peak memory of the code in its `with` block, and says who held it.

    Give it the model and the optimizer, so that it can tell parameters, gradients and optimizer state apart:

    >>> with MemoryMeter(model, optimizer) as meter:  # doctest: +SKIP
    ...     train_step()
    >>> print(meter)  # doctest: +SKIP

    A model compiled by `torch.compile` runs uncompiled inside the meter, which sees single operations. Memory that
    other threads allocate is not seen.

    Args:
        model: whose parameters and buffers to recognise.
        optimizer: whose state to recognise.
        device: where to measure; default: where the model is, or the fastest device.

    Attributes:
        method: "allocator" (every byte the allocator handed out) or "counted" (tensors only).
        peak_bytes: most bytes held at once by anything the block touched or allocated.
        at_peak: those bytes by tenant; they sum to `peak_bytes`.
        largest: the most each tenant held at any moment (these do not add up to the peak).
        peak_at: the phase and the operation during which the peak was reached.
        outside_bytes: bytes on the GPU that were there before and that the block never touched.
        timeline: (seconds since the start, bytes by tenant) after each change.

    Raises:
        RuntimeError: when meters are nested.
    """

    _active = False

    def __init__(
        self,
        model: nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        device: torch.device | None = None,
    ) -> None:
        self._model, self._optimizer = model, optimizer
        first = next(model.parameters(), None) if model is not None else None
        self._device = device or (first.device if first is not None else pick_device())
        self._forget()

    def _forget(self) -> None:
        """Set all results to those of an empty block."""
        self.method = "counted" if self._device.type == "mps" else "allocator"
        self.peak_bytes = 0
        self.outside_bytes = 0
        self.at_peak = dict.fromkeys(TENANTS, 0)
        self.largest = dict.fromkeys(TENANTS, 0)
        self.peak_at = "nothing was allocated"
        self.timeline: list[tuple[float, dict[str, int]]] = []

    # -- while the block runs

    def __enter__(self) -> "MemoryMeter":
        if MemoryMeter._active:
            raise RuntimeError("Memory meters do not nest: end the outer one first.")
        self._forget()
        count = self._count = _Count(self._device)
        self._handles = []
        if self._model is not None:
            for parameter in self._model.parameters():
                count.see(parameter, "parameters")
                count.see(parameter.grad, "gradients")
                if parameter.requires_grad:
                    self._handles.append(parameter.register_post_accumulate_grad_hook(self._gradient_ready))
            for buffer in self._model.buffers():
                count.see(buffer, "parameters")
        if self._optimizer is not None:
            self._see_optimizer_state()
            self._handles.append(self._optimizer.register_step_pre_hook(self._step_begins))
            self._handles.append(self._optimizer.register_step_post_hook(self._step_ends))
        self._held_before = torch.cuda.memory_allocated(self._device) if self._device.type == "cuda" else 0
        self._saved_hooks = torch.autograd.graph.saved_tensors_hooks(count.keep, count.fetch)
        if torch.autograd._profiler_enabled():
            self.method = "counted"  # a second profiler would end the first one's recording
        self._profiler = None
        if self.method == "allocator":
            self._profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
            self._profiler.__enter__()
        self._start = time.time_ns()
        self._saved_hooks.__enter__()
        count.__enter__()
        MemoryMeter._active = True
        return self

    def __exit__(self, *error: object) -> None:
        MemoryMeter._active = False
        self._count.__exit__(*error)
        self._saved_hooks.__exit__(*error)
        for handle in self._handles:
            handle.remove()
        if self._model is not None:
            for parameter in self._model.parameters():
                self._count.see(parameter, "parameters")  # after model.half() it is another tensor
                self._count.see(parameter.grad, "gradients")  # it may have been assigned, not accumulated
        if self._profiler is not None:
            whole = torch.autograd._profiler_enabled()
            self._profiler.__exit__(*error)
            if not whole:  # somebody else's profiler, started and ended inside the block, has ended ours
                self._profiler, self.method = None, "counted"
        self._count.close()
        self._replay(self._join())
        del self._count, self._profiler, self._handles, self._saved_hooks

    def _see_optimizer_state(self) -> None:
        for leaf in tree_leaves(list(self._optimizer.state.values())):
            self._count.see(leaf, "optimizer state")

    def _gradient_ready(self, parameter: Tensor) -> None:
        self._count.see(parameter.grad, "gradients")

    def _step_begins(self, *_: object) -> None:
        self._count.stepping = True

    def _step_ends(self, *_: object) -> None:
        self._count.stepping = False
        self._see_optimizer_state()

    # -- afterwards

    def _allocations(self) -> dict[int, list[_Lifetime]]:
        """Read the allocator's log: the lifetimes at each address, in order, none labelled yet."""
        events, stack = [], list(self._profiler.profiler.kineto_results.experimental_event_tree())
        while stack:
            node = stack.pop()
            stack += node.children
            if node.tag == torch._C._profiler._EventType.Allocation:
                fields = node.extra_fields
                if fields.device.type == self._device.type:
                    events.append((node.start_time_ns, fields.ptr, fields.alloc_size))
        lifetimes: dict[int, list[_Lifetime]] = defaultdict(list)
        for when, address, nbytes in sorted(events, key=lambda event: event[0]):
            if nbytes > 0:
                lifetimes[address].append(_Lifetime(when, None, nbytes, "kernel workspace"))
            elif lifetimes[address]:  # else: the end of something older, which the count has seen or nobody
                lifetimes[address][-1].end = when
        return lifetimes

    def _join(self) -> list[_Lifetime]:
        """Write the count's tenants on the allocator's log; add what was there before the block."""
        log = self._allocations() if self._profiler is not None else {}
        older: list[_Lifetime] = []
        for block in self._count.blocks:
            here = log.get(block.address, [])
            last = bisect.bisect_right(here, block.seen, key=lambda life: life.start) - 1
            if last >= 0 and (here[last].end is None or here[last].end >= block.seen):
                here[last].tenant = block.tenant
            elif self._profiler is not None or block.seen < self._start:
                older.append(self._older(block))
            else:
                older.append(_Lifetime(block.seen, block.died, block.nbytes, block.tenant))
        if self._device.type == "cuda":
            known = sum(life.nbytes for life in older if life.start < self._start)
            self.outside_bytes = max(0, self._held_before - known)
        return older + [life for lives in log.values() for life in lives]

    def _older(self, block: _Block) -> _Lifetime:
        """Return the lifetime of a block that is older than the meter: a parameter, or an input."""
        nbytes = block.nbytes
        if self._device.type == "cuda":
            nbytes = -(-nbytes // CUDA_ROUNDING) * CUDA_ROUNDING
        unclaimed = block.tenant in (
            "temporaries",
            "activations",
        )  # an input stays one when autograd saves it
        tenant = "inputs and other" if unclaimed else block.tenant
        return _Lifetime(self._start - 1, block.died, nbytes, tenant)

    def _replay(self, lifetimes: list[_Lifetime]) -> None:
        """Go through all changes in order of time and keep the peak."""
        changes = [(life.start, life.nbytes, life.tenant) for life in lifetimes]
        changes += [(life.end, -life.nbytes, life.tenant) for life in lifetimes if life.end is not None]
        held, total, peak_time = dict.fromkeys(TENANTS, 0), 0, self._start
        for when, delta, tenant in sorted(changes, key=lambda change: change[0]):
            held[tenant] += delta
            total += delta
            self.largest[tenant] = max(self.largest[tenant], held[tenant])
            if total > self.peak_bytes:
                self.peak_bytes, self.at_peak, peak_time = total, dict(held), when
            if when >= self._start:
                self.timeline.append(((when - self._start) / 1e9, dict(held)))
        ops = self._count.ops
        running = bisect.bisect_right(ops, peak_time, key=lambda op: op[0]) - 1
        if self.peak_bytes:
            self.peak_at = ops[running][1] if running >= 0 else "the start"

    # -- reading it

    def plot(self, title: str = "Memory during the block") -> Figure:
        """Draw what each tenant held over time."""
        return memory_timeline(self.timeline, TENANTS, title)

    def _rows(self) -> list[tuple[str, str, str]]:
        held = [(tenant, nbytes) for tenant, nbytes in self.at_peak.items() if nbytes]
        return [(t, human_bytes(n), f"{n / self.peak_bytes:.0%}") for t, n in held]

    def _headline(self) -> str:
        return f"peak {human_bytes(self.peak_bytes)} ({self.method}, {self._device.type}) in {self.peak_at}"

    def __str__(self) -> str:
        lines = [f"  {tenant:<17}{nbytes:>12}{share:>6}" for tenant, nbytes, share in self._rows()]
        return "\n".join([self._headline(), *lines])

    def _repr_html_(self) -> str:
        rows = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in self._rows())
        return f"<p>{html.escape(self._headline())}</p><table>{rows}</table>"
