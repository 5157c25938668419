"""What `torch.compile` needs to record graphs for a pretended GPU. The backends "eager" and "aot_eager" work.

Graphs are recorded with fake tensors: they have a device, and no data. If PyTorch's C++ heard of CUDA, it would want
CUDA's streams, which are not here. So it is told that fake tensors are on the CPU, as the others of the pretence are,
and Python is told the GPU. A recorded graph then runs on tensors with homes, and is refused what CUDA refuses.
"""

import functools
import threading
from pathlib import Path
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from .homes import is_gpu
from .patches import Patches

_CPU = torch.device("cpu")
_ASKS_DEVICE = torch.ops.prim.device.default
_new = FakeTensor.__new__
_of_tensor = FakeTensor.__torch_dispatch__.__func__
_of_mode = FakeTensorMode.dispatch


class _Thread(threading.local):
    asked = _CPU  # the device of the fake tensor that C++ asked about last


_thread = _Thread()


def _told(device: torch.device) -> torch.device:
    """Return what C++ is told of the device of a fake tensor."""
    _thread.asked = device
    return _CPU if is_gpu(device) else device


def _made(cls: type, mode: Any = None, elem: Any = None, device: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Make a fake tensor with the kernels of the CPU, among which autocast.py has those of a pretended GPU."""
    gpu = device is not None and is_gpu(torch.device(device))
    self = _new(cls, mode, elem, _CPU if gpu else device, *args, **kwargs)
    if gpu:
        self.fake_device = torch.device(device)
    return self


def _tensor_dispatch(cls: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    result = _of_tensor(cls, func, types, args, kwargs or {})
    return _told(result) if func is _ASKS_DEVICE else result


def _mode_dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Put what C++ makes where it belongs: next to a tensor among its arguments, or to the one asked about."""
    kwargs = kwargs or {}
    if kwargs.get("device") == _CPU and "pin_memory" not in kwargs:  # C++ does not name it: see dispatch.py
        like = next((value.fake_device for value in args if isinstance(value, FakeTensor)), _thread.asked)
        kwargs = kwargs | {"device": like}
    if func is not torch.ops.aten._to_copy.default or args[0].constant is None:
        return _of_mode(self, func, types, args, kwargs)
    constant, args[0].constant = args[0].constant, None  # its value: the copy would be computed, on the CPU
    try:
        return _of_mode(self, func, types, args, kwargs)
    finally:
        args[0].constant = constant


def _guard_devices(patches: Patches, guards: Any) -> None:
    """Let a tensor on another device call for another graph: to C++, which looks, all are on the CPU."""
    match = guards.GuardBuilder.TENSOR_MATCH

    @functools.wraps(match)
    def device_too(self: Any, guard: Any, value: Any = None) -> None:
        match(self, guard, value)
        device = self.get(guard).device
        reason = [f"{self.arg_ref(guard)}.device == {str(device)!r}"]
        self.get_guard_manager(guard).add_lambda_guard(lambda tensor: tensor.device == device, reason, guard.user_stack)

    patches.put(guards.GuardBuilder, "TENSOR_MATCH", device_too)


def _leave_alone(patches: Patches, rules: Any) -> None:
    """Keep the pretence itself out of graphs: on a real machine its Python is not there to be compiled."""
    here = Path(__file__).parent
    kernels = "planner/allocator.py", "planner/simulate/cuda_kernels.py"
    own = [*here.glob("*.py"), *(here.parent / name for name in kernels)]
    rules.FORCE_SKIP_FILES.update(path.as_posix() for path in own)


def install(patches: Patches) -> None:
    """Teach fake tensors, and the compiler as soon as it is imported."""
    patches.put(FakeTensor, "__new__", staticmethod(_made))
    patches.put(FakeTensor, "__torch_dispatch__", classmethod(_tensor_dispatch))
    patches.put(FakeTensorMode, "dispatch", _mode_dispatch)
    handlers = fake_tensor._DISPATCH_META_HANDLERS
    handler = handlers[_ASKS_DEVICE]
    handlers[_ASKS_DEVICE] = lambda args: _told(handler(args))
    patches.later(lambda: handlers.__setitem__(_ASKS_DEVICE, handler))
    patches.after_import("torch._dynamo.guards", _guard_devices)
    patches.after_import("torch._dynamo.trace_rules", _leave_alone)
