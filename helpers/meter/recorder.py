"""A memory meter that is true on any machine.

Two instruments run side by side and each does what the other cannot.

*The allocator's log* (`allocator_log.py`) knows every byte. PyTorch's profiler reports each allocation and each release
(address, size, time), on the CPU as well as on a GPU. The peak is read from it.

*The count* (`count.py`) knows whose bytes they are. It sees every tensor that an operation takes or returns, and which
of them autograd saves for backward, which become gradients, which belong to the optimizer.

The two are joined by address (`lifetime.py`). Where there is no allocator log (Apple's GPU, or a profiler that is
already in use), the count alone gives the figures, and `method` says so.
"""

import contextlib
import gc
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from ..core.device import pick_device
from .known_bytes import known_bytes
from .operation import NO_OP
from .profile import MemoryProfile
from .session import Session, clock, current, profiler_lock


class MemoryMeter:
    """Measures the peak memory of the code in its `with` block, and who held it.

    Give it the model and the optimizer, so that it can tell parameters, gradients and optimizer state apart:

    >>> with MemoryMeter(model, optimizer) as profile:  # doctest: +SKIP
    ...     train_step()
    >>> print(profile)  # doctest: +SKIP

    The `MemoryProfile` is filled when the block ends. The meter itself can be used again: each block gets a new one.

    Meters nest: one inside another measures its own block, and knows the categories of both. Memory that other threads
    allocate is not seen. `torch.func` works inside only with `by_category=False`, because it allows no hooks on saved
    tensors. A function that `torch.compile` has made runs uncompiled inside, except with `by_category=False`.

    Args:
        model: whose parameters and buffers to recognise.
        optimizer: whose state to recognise; several in a list.
        device: where to measure; default: where the model is, or the fastest device.
        by_category: False measures the peak alone, at almost no cost: of the categories, only parameters, gradients and
            optimizer state are told apart, and on a GPU none. Of what existed before the block, only these three count.

    Attributes:
        profile: what the latest block took; empty before the first.

    Raises:
        RuntimeError: on entering a meter that is measuring already, or one inside a meter of another device.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None = None,
        device: torch.device | None = None,
        by_category: bool = True,
    ) -> None:
        self._model = model
        single = isinstance(optimizer, torch.optim.Optimizer)
        self._optimizers = [optimizer] if single else list(optimizer or ())
        first = next(model.parameters(), None) if model is not None else None
        self._device = device or (first.device if first is not None else pick_device())
        self._by_category = by_category
        self._stack: contextlib.ExitStack | None = None
        self.profile = MemoryProfile(self._device.type, self.method)

    @property
    def method(self) -> str:
        """How memory is measured on this device, where no other profiler is running: see `MemoryProfile.method`."""
        return "counted" if self._device.type == "mps" else "allocator"

    @property
    def _reads_statistics(self) -> bool:
        """Whether CUDA's own statistics are enough."""
        return self._device.type == "cuda" and not self._by_category

    def __getattr__(self, name: str) -> Any:
        """Point to the profile when a figure is asked of the meter."""
        known = name in MemoryProfile.__dataclass_fields__ or hasattr(MemoryProfile, name)
        hint = f". A meter only records; what it found is in meter.profile.{name}" if known else ""
        raise AttributeError(f"MemoryMeter has no attribute {name!r}{hint}")

    # -- before the block

    def __enter__(self) -> MemoryProfile:
        if self._stack is not None:
            raise RuntimeError("This meter is already measuring; use another one for the inner block.")
        self.profile = MemoryProfile(self._device.type, self.method)
        with contextlib.ExitStack() as stack:  # if anything fails, all is undone
            self._begin(stack)
            self._stack = stack.pop_all()
        return self.profile

    def _begin(self, stack: contextlib.ExitStack) -> None:
        self._reserved_before = 0
        if self._device.type == "cuda":
            self._allocated_before = torch.cuda.memory_allocated(self._device)
            self._reserved_before = torch.cuda.memory_reserved(self._device)
        if self._reads_statistics:
            self._outside = max(0, self._allocated_before - known_bytes(self._model, self._optimizers, self._device))
            torch.cuda.reset_peak_memory_stats(self._device)
            return
        compiled = self._model is not None and _is_compiled(self._model)
        self._outer = current.session
        self._session = self._outer or self._new_session(stack, compiled)
        if self._session.device != self._device:
            raise RuntimeError(f"A meter of {self._session.device} is measuring; {self._device} has to wait its turn.")
        counting = self._session.counting
        if self._outer and self._by_category and not counting:
            self.profile.notes.append("The meter around this one tells no categories apart, so this one cannot either.")
        if compiled:
            self.profile.notes.append(
                "The model is compiled, and inside a meter of single operations it runs uncompiled."
                if counting
                else "The model is compiled: what it keeps for the backward pass is among the temporaries."
            )
        for handle in self._session.count.watch(self._model, self._optimizers, names=counting):
            stack.callback(handle.remove)
        if self._outer is None:
            self._session.open(stack)
        self.profile.began = clock()

    def _new_session(self, stack: contextlib.ExitStack, compiled: bool) -> Session:
        """Return the session of an outermost meter; it has a log unless another profiler is in use."""
        # A second profiler would end the first one's recording.
        free = self.method == "allocator" and profiler_lock.acquire(blocking=False)
        if free:
            stack.callback(profiler_lock.release)
        logging = free and not torch.autograd._profiler_enabled()
        return Session(self._device, not logging or (self._by_category and not compiled), logging)

    # -- after the block

    def __exit__(self, *error: object) -> None:
        stack, self._stack = self._stack, None
        profile = self.profile
        profile.ended = clock()
        with stack:
            if not self._reads_statistics:
                self._label_again()
        if self._device.type == "cuda":
            profile.reserved_bytes = max(self._reserved_before, torch.cuda.memory_reserved(self._device))
        if self._reads_statistics:
            profile.outside_bytes = self._outside
            profile.fill_from_statistics(torch.cuda.max_memory_allocated(self._device) - self._outside)
            return
        with _no_garbage_collection():  # nothing should be freed while the log of an outer meter is read
            self._fill(self._session)
        del self._session, self._outer

    def _label_again(self) -> None:
        """Label what the model and the optimizers hold at the end: after model.half() these are other tensors."""
        if self._model is not None:
            self._session.count.label(self._model)
        for optimizer in self._optimizers:
            self._session.count.label_state(optimizer)

    def _fill(self, session: Session) -> None:
        """Fill the profile from the session, which goes on if it is that of a meter around this one."""
        if self._outer is not None:
            session.flush()
        profile = self.profile
        profile.method = "allocator" if session.log else "counted"
        profile.fill(session.lifetimes(profile.ended), session.count.ops)
        if self._device.type == "cuda":
            # An input is older than the block as well, though it counts only from when the block first touched it.
            known = sum(x.nbytes for x in profile.lifetimes if x.start < profile.began or x.op is NO_OP)
            profile.outside_bytes = max(0, self._allocated_before - known)
        if self._outer is not None and session.log:
            session.log.start()


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _is_compiled(model: nn.Module) -> bool:
    return any(
        module._compiled_call_impl is not None or type(module).__name__ == "OptimizedModule"
        for module in model.modules()
    )
