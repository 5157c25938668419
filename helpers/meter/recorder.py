"""A memory meter that is true on any machine.

Two instruments run side by side and each does what the other cannot.

*The allocator's log* (`allocator_log.py`) knows every byte. PyTorch's profiler reports each allocation and each release
(address, size, time), on the CPU as well as on a GPU. The peak is read from it.

*The count* (`count.py`) knows whose bytes they are. It sees every tensor that an operation takes or returns, and which
of them autograd saved for backward, which became gradients, which belong to the optimizer.

The two are joined by address. What the allocator held and no tensor explains is the scratch space of a kernel:
a tenant of its own, **kernel workspace**. Where there is no allocator log (Apple's GPU, or a profiler that is
already in use), the count alone gives the figures, and `method` says so.
"""

import bisect
import contextlib
import functools
import gc
import html
import pickle
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from torch import nn

from ..core.device import pick_device
from ..core.units import human_bytes
from .allocator_log import AllocatorLog
from .count import NO_OP, TENANTS, Block, Count, Op
from .figures import memory_blocks, memory_timeline

CUDA_ROUNDING = 512  # CUDA's caching allocator hands out multiples of this many bytes
_clock = AllocatorLog.clock


@dataclass(slots=True, eq=False)
class Lifetime:
    """A stretch of memory, whose it was, and which operation made it. Times in ns; `end` None: outlived the block."""

    start: int
    end: int | None
    nbytes: int
    tenant: str
    op: Op


class Moment(NamedTuple):
    """Bytes by tenant after a change, `seconds` after the start of the block, and the operation at work."""

    seconds: float
    held: dict[str, int]
    op: Op


class Stage(NamedTuple):
    """One leg of a training step: forward, backward or optimizer step."""

    name: str
    peak_bytes: int
    held_after: dict[str, int]


class _Here(threading.local):
    """The session of each thread: modes and hooks belong to a thread, too."""

    session: "_Session | None" = None


_here = _Here()
_profiler_is_ours = threading.Lock()  # there is one profiler in a process


def _address(storage: torch.UntypedStorage) -> int:
    """Return where `storage` lies; 0 for the make-believe tensors with which tensor parallelism plans."""
    return 0 if storage.device.type == "meta" else storage.data_ptr()


class _Session:
    """The count and the log of the outermost meter; meters inside it read the same two."""

    def __init__(self, device: torch.device, counting: bool, logging: bool) -> None:
        self.device, self.counting = device, counting
        self.count = Count(device.type, _clock, _address)
        self.log = AllocatorLog(device) if logging else None
        self.began = 0
        self._saved_hooks = torch.autograd.graph.saved_tensors_hooks(self.count.keep, self.count.fetch)

    def open(self, stack: contextlib.ExitStack) -> None:
        """Begin to count and to log; `stack` gets what ends it."""
        stack.callback(self.count.close)
        if self.log:
            self.log.start()
            stack.callback(self.flush)
        self.began = _clock()
        if self.counting:
            if "torch._dynamo" in sys.modules:  # else nothing has been compiled, and to import it takes seconds
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(self._saved_hooks)
            stack.enter_context(self.count)
        _here.session = self
        stack.callback(setattr, _here, "session", None)

    def flush(self) -> None:
        """End the log's recording; it is lost when somebody else's profiler has cut it short."""
        if self.log and not self.log.stop():
            self.log = None

    def lifetimes(self, now: int) -> list[Lifetime]:
        """Write the count's tenants on the allocator's log; add what the log does not know."""
        self.count.settle()
        ops = self.count.ops
        here = self.log.by_address() if self.log else {}
        result, claimed = [], {}
        foreign: dict[int, Lifetime] = {}  # address -> memory that is not of this session, or not of this allocator
        for block in self.count.blocks:
            allocations = here.get(block.address, [])
            last = bisect.bisect_right(allocations, block.seen, key=lambda a: a.start) - 1
            if last >= 0 and (allocations[last].end is None or allocations[last].end >= block.seen):
                claimed[id(allocations[last])] = block
            elif self.log or block.seen < self.began:
                life = self._foreign(block)
                last_there = foreign.get(block.address)
                if last_there and (last_there.end is None or last_there.end >= life.start):  # two views of one memory
                    ends = (last_there.end, life.end)
                    last_there.end = None if None in ends else max(ends)
                    last_there.nbytes = max(last_there.nbytes, life.nbytes)
                else:
                    foreign[block.address] = life
                    result.append(life)
            else:
                result.append(Lifetime(block.seen, block.died, block.nbytes, block.tenant, block.op))
        unexplained = "kernel workspace" if self.counting else "temporaries"
        for allocations in here.values():
            for a in allocations:
                block = claimed.get(id(a))
                if block:
                    end = block.died if a.end is None else a.end  # the log misses what ends while it is being read
                    result.append(Lifetime(a.start, end, a.nbytes, block.tenant, block.op))
                elif a.start <= now:
                    result.append(Lifetime(a.start, a.end, a.nbytes, unexplained, op_at(ops, a.start)))
        return result

    def _foreign(self, block: Block) -> Lifetime:
        """Return the lifetime of a block that the log has not seen being allocated.

        What was known when the session began (parameters, state) was there from the start. An input that is older, or
        memory of somebody else's (a NumPy array), counts from when an operation first touched it.
        """
        nbytes = block.nbytes
        if self.device.type == "cuda":
            nbytes = -(-nbytes // CUDA_ROUNDING) * CUDA_ROUNDING
        unclaimed = block.tenant in ("temporaries", "activations")  # an input stays one when autograd saves it
        tenant = "inputs and other" if unclaimed else block.tenant
        start = self.began - 1 if block.seen < self.began else block.seen
        return Lifetime(start, block.died, nbytes, tenant, NO_OP)


def op_at(ops: list[Op], when: int) -> Op:
    """Return the last of `ops` that had begun at `when`."""
    running = bisect.bisect_right(ops, when, key=lambda op: op.when) - 1
    return ops[running] if running >= 0 else NO_OP


class MemoryMeter:
    """Measures the peak memory of the code in its `with` block, and says who held it.

    Give it the model and the optimizer, so that it can tell parameters, gradients and optimizer state apart:

    >>> with MemoryMeter(model, optimizer) as meter:  # doctest: +SKIP
    ...     train_step()
    >>> print(meter)  # doctest: +SKIP

    Meters nest: one inside another measures its own block, and knows the tenants of both. Memory that other threads
    allocate is not seen. `torch.func` works inside only with `by_tenant=False`: it admits no hooks on saved tensors. A
    function that `torch.compile` has made runs uncompiled inside, except with `by_tenant=False`.

    Args:
        model: whose parameters and buffers to recognise.
        optimizer: whose state to recognise; several in a list.
        device: where to measure; default: where the model is, or the fastest device.
        by_tenant: False measures the peak alone, at almost no cost: of the tenants, only parameters, gradients and
            optimizer state are told apart, and on a GPU none.

    Attributes:
        method: "allocator" (every byte the allocator handed out) or "counted" (tensors only).
        peak_bytes: most bytes held at once by anything the block touched or allocated.
        at_peak: those bytes by tenant; they sum to `peak_bytes`.
        largest: the most each tenant held at any moment (these do not add up to the peak).
        peak_at: the phase, the operation and the module during which the peak was reached.
        stages: forward, backward and optimizer step, each with its peak and with what it left behind.
        lifetimes: every stretch of memory that lived in the block.
        began, peak_time, ended: when the block began, reached its peak and ended, in ns, as in `lifetimes`.
        outside_bytes: bytes on the GPU that were there before and that the block never touched.
        reserved_bytes: what CUDA's caching allocator had reserved; 0 elsewhere.
        notes: what the meter could not see, in words.

    Raises:
        RuntimeError: on entering a meter that is measuring already, or one inside a meter of another device.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None = None,
        device: torch.device | None = None,
        by_tenant: bool = True,
    ) -> None:
        self._model = model
        single = isinstance(optimizer, torch.optim.Optimizer)
        self._optimizers = [optimizer] if single else list(optimizer or ())
        first = next(model.parameters(), None) if model is not None else None
        self._device = device or (first.device if first is not None else pick_device())
        self._by_tenant = by_tenant
        self._stack: contextlib.ExitStack | None = None
        self._forget()

    def _forget(self) -> None:
        """Set all results to those of an empty block."""
        self.method = "counted" if self._device.type == "mps" else "allocator"
        self.peak_bytes = self.outside_bytes = self.reserved_bytes = 0
        self.at_peak = dict.fromkeys(TENANTS, 0)
        self.largest = dict.fromkeys(TENANTS, 0)
        self.peak_at = "nothing was allocated"
        self.stages: list[Stage] = []
        self.lifetimes: list[Lifetime] = []
        self.notes: list[str] = []
        self._ops: list[Op] = []
        self.began = self.ended = self.peak_time = 0
        self.__dict__.pop("timeline", None)

    def __getstate__(self) -> dict[str, Any]:
        """Leave model and optimizers behind when the figures go to another process."""
        return self.__dict__ | {"_model": None, "_optimizers": []}

    # -- while the block runs

    @property
    def _reads_statistics(self) -> bool:
        """Whether CUDA's own statistics are all that is wanted."""
        return self._device.type == "cuda" and not self._by_tenant

    def __enter__(self) -> "MemoryMeter":
        if self._stack is not None:
            raise RuntimeError("This meter is measuring already; make another one for the block inside.")
        self._forget()
        with contextlib.ExitStack() as stack:  # if anything fails, all is undone
            self._begin(stack)
            self._stack = stack.pop_all()
        return self

    def _begin(self, stack: contextlib.ExitStack) -> None:
        self._reserved_before = 0
        if self._device.type == "cuda":
            self._held_before = torch.cuda.memory_allocated(self._device)
            self._reserved_before = torch.cuda.memory_reserved(self._device)
        if self._reads_statistics:
            torch.cuda.reset_peak_memory_stats(self._device)
            return
        compiled = self._model is not None and _is_compiled(self._model)
        self._outer = _here.session
        if self._outer is None:
            # A second profiler would end the first one's recording.
            free = self.method == "allocator" and _profiler_is_ours.acquire(blocking=False)
            if free:
                stack.callback(_profiler_is_ours.release)
            if not free or torch.autograd._profiler_enabled():
                self.method = "counted"
            logging = self.method == "allocator"
            self._session = _Session(self._device, not logging or (self._by_tenant and not compiled), logging)
        else:
            if self._outer.device != self._device:
                raise RuntimeError(
                    f"A meter of {self._outer.device} is measuring; {self._device} has to wait its turn."
                )
            self._session = self._outer
            if self._by_tenant and not self._outer.counting:
                self.notes.append("The meter around this one tells no tenants apart, so this one cannot either.")
        counting = self._session.counting
        if compiled:
            self.notes.append(
                "The model is compiled, and inside a meter of single operations it runs uncompiled."
                if counting
                else "The model is compiled: what it keeps for the backward pass is among the temporaries."
            )
        for handle in self._session.count.watch(self._model, self._optimizers, names=counting):
            stack.callback(handle.remove)
        if self._outer is None:
            self._session.open(stack)
        self.began = _clock()

    def __exit__(self, *error: object) -> None:
        stack, self._stack = self._stack, None
        self.ended = _clock()
        with stack:
            if not self._reads_statistics:
                self._label_again()
        if self._device.type == "cuda":
            self.reserved_bytes = max(self._reserved_before, torch.cuda.memory_reserved(self._device))
        if self._reads_statistics:
            self.peak_bytes = torch.cuda.max_memory_allocated(self._device)
            self.at_peak["inputs and other"] = self.largest["inputs and other"] = self.peak_bytes
            self.peak_at = "some operation (measured without looking)"
            return
        session, collecting = self._session, gc.isenabled()
        gc.disable()  # nothing should be freed while the log of an outer meter is read
        try:
            if self._outer is not None:
                session.flush()
            self.method = "allocator" if session.log else "counted"
            self._ops = session.count.ops[:]
            self._replay(session.lifetimes(self.ended))
            if self._outer is not None and session.log:
                session.log.start()
        finally:
            if collecting:
                gc.enable()
        del self._session, self._outer

    def _label_again(self) -> None:
        """Label what the model and the optimizers hold at the end: after model.half() it is other tensors."""
        if self._model is not None:
            self._session.count.label(self._model)
        for optimizer in self._optimizers:
            self._session.count.label_state(optimizer)

    # -- afterwards

    def _replay(self, lifetimes: list[Lifetime]) -> None:
        """Go through all changes in order of time and keep the peak."""
        self.lifetimes = [
            life for life in lifetimes if life.start <= self.ended and (life.end is None or life.end >= self.began)
        ]
        if self._device.type == "cuda":
            known = sum(life.nbytes for life in self.lifetimes if life.start < self.began)
            self.outside_bytes = max(0, self._held_before - known)
        self.peak_time = self.began
        held, total, began = dict.fromkeys(TENANTS, 0), 0, False
        for when, delta, tenant in [*self._changes(), (self.ended, 0, TENANTS[0])]:
            if when >= self.began and not began:  # what was there from the start
                began, self.largest = True, dict(held)
                self.peak_bytes, self.at_peak = total, dict(held)
            held[tenant] += delta
            total += delta
            if began:
                self.largest[tenant] = max(self.largest[tenant], held[tenant])
                if total > self.peak_bytes:
                    self.peak_bytes, self.at_peak, self.peak_time = total, dict(held), when
        if self.peak_bytes:
            op = op_at(self._ops, self.peak_time)
            if self.peak_time <= self.began:
                self.peak_at = "the start"
            else:
                self.peak_at = "some operation" if op is NO_OP else str(op)
        self._find_stages()

    def _changes(self) -> list[tuple[int, int, str]]:
        """Return (time, change in bytes, tenant), in order of time."""
        changes = [(life.start, life.nbytes, life.tenant) for life in self.lifetimes]
        changes += [
            (life.end, -life.nbytes, life.tenant)
            for life in self.lifetimes
            if life.end is not None and life.end <= self.ended
        ]
        return sorted(changes, key=lambda change: change[0])

    def _find_stages(self) -> None:
        """Cut the block where its phase changes, and look at each piece."""
        cuts: list[tuple[int, str]] = []
        for op in self._ops:
            leg = op.phase.partition(" (")[0]
            if self.began <= op.when <= self.ended and (not cuts or cuts[-1][1] != leg):
                cuts.append((op.when, leg))
        if not cuts:
            return
        changes, at = self._changes(), 0
        held, total = dict.fromkeys(TENANTS, 0), 0
        ends = [when for when, _ in cuts[1:]] + [self.ended]
        for (begin, leg), end in zip(cuts, ends, strict=True):
            peak = 0
            while at < len(changes) and changes[at][0] <= end:
                when, delta, tenant = changes[at]
                if when > begin:
                    peak = max(peak, total)
                held[tenant] += delta
                total += delta
                at += 1
            self.stages.append(Stage(leg, max(peak, total), dict(held)))

    @functools.cached_property
    def timeline(self) -> list[Moment]:
        """What each tenant held after each change."""
        held, moments = dict.fromkeys(TENANTS, 0), []
        for when, delta, tenant in self._changes():
            held[tenant] += delta
            if when >= self.began:
                moments.append(Moment((when - self.began) / 1e9, dict(held), op_at(self._ops, when)))
        return moments

    # -- reading it

    def plot(self, title: str = "Memory during the block") -> Figure:
        """Draw what each tenant held over time."""
        return memory_timeline(self.timeline, TENANTS, title)

    def plot_blocks(self, title: str = "Memory, block by block", blocks: int = 300) -> Figure:
        """Draw the largest `blocks` stretches of memory one by one, as PyTorch's memory viewer does."""
        pieces = [
            ((life.start - self.began) / 1e9, (life.end or self.ended) - self.began, life.nbytes, life.tenant)
            for life in self.lifetimes
        ]
        seconds = (self.ended - self.began) / 1e9
        return memory_blocks([(s, e / 1e9, n, t) for s, e, n, t in pieces], TENANTS, seconds, title, blocks)

    def save_snapshot(self, path: str | Path) -> None:
        """Write a file for PyTorch's memory viewer (pytorch.org/memory_viz), on any device.

        `torch.cuda.memory._dump_snapshot` writes such files from CUDA's allocator; this one is written from what the
        meter saw, with the operation and the module where CUDA's has the lines of the program.
        """
        trace: list[dict[str, Any]] = []
        for number, life in enumerate(self.lifetimes):
            frame = {"name": life.op.name, "filename": f"{life.tenant}; {life.op.phase} {life.op.module}", "line": 0}
            event = {"addr": (number + 1) << 32, "size": life.nbytes, "stream": 0, "frames": [frame]}
            trace.append(event | {"action": "alloc", "time_us": max(life.start, self.began) // 1000})
            if life.end is not None:
                trace.append(event | {"action": "free_completed", "time_us": life.end // 1000})
        trace.sort(key=lambda event: event["time_us"])
        snapshot = {"segments": [], "device_traces": [trace], "allocator_settings": {}}
        Path(path).write_bytes(pickle.dumps(snapshot))

    def _rows(self) -> list[tuple[str, str, str]]:
        held = [(tenant, nbytes) for tenant, nbytes in self.at_peak.items() if nbytes]
        return [(t, human_bytes(n), f"{n / self.peak_bytes:.0%}") for t, n in held]

    def _headline(self) -> str:
        return f"peak {human_bytes(self.peak_bytes)} ({self.method}, {self._device.type}) in {self.peak_at}"

    def __str__(self) -> str:
        lines = [f"  {tenant:<23}{nbytes:>12}{share:>6}" for tenant, nbytes, share in self._rows()]
        if self.reserved_bytes:
            lines.append(f"  reserved by the allocator: {human_bytes(self.reserved_bytes)}")
        return "\n".join([self._headline(), *lines, *self.notes])

    def _repr_html_(self) -> str:
        rows = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in self._rows())
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return f"<p>{html.escape(self._headline())}</p><table>{rows}</table>{notes}"


def _is_compiled(model: nn.Module) -> bool:
    return any(
        module._compiled_call_impl is not None or type(module).__name__ == "OptimizedModule"
        for module in model.modules()
    )
