"""The mode that sees every operation: it places the results, and refuses what CUDA refuses.

It stands at the bottom of the stack of dispatch modes, so memory meters and FLOP counters above it see what they would
see on a GPU. Two things it knows of PyTorch's bindings: a factory that Python calls names `pin_memory`, and one that
C++ calls does not.
"""

import functools
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode

from ..planner.simulate.cuda_kernels import scratch_bytes
from . import generators, memory
from .attention import attention, is_attention
from .giants import is_giant, shaped_like
from .homes import Home, gpu_index, home_of, home_of_storage, is_gpu, place, storage_of
from .norm_statistics import is_reduced_norm, reduced_norm
from .recurrent import is_recurrent, recurrent, workspace_bytes
from .refusals import Refusals

_CPU = torch.device("cpu")
_FAKE = torch._C._TorchDispatchModeKey.FAKE
aten = torch.ops.aten
# These go between devices. c10d's collectives are looked after in ranks.py.
_MOVERS = {"copy_", "_foreach_copy_", "_to_copy", "_copy_from", "set_", "resize_as_", "record_stream"}
_FIRST_ALONE = {"_pack_padded_sequence"}  # of their results, only the first one is on the GPU


NO_BATCH = -1  # rows of a tensor that is no batch
_COLORS, _SIDE = 3, 32  # channels of a picture; pixels at least


class _Thread(threading.local):
    destination: int | str | None = None  # where `.to` is moving a tensor: a GPU's index, or "cpu"
    last: int | None = None  # the GPU of the last operation
    arriving = False  # whether a tensor comes from another device
    arriving_weight = False  # whether that tensor is a parameter, or a vector such as a norm's statistics
    arriving_rows = 0  # the first dimension of that tensor; 0 for a number, NO_BATCH for a single picture
    casting_weights: torch.dtype | None = None  # of the copy that autocast makes and keeps


thread = _Thread()


class Pretence(TorchDispatchMode):
    """Runs operations on the CPU as if on the machine's GPUs.

    Attributes:
        traffic: counts the collectives of a rank; None counts nothing.
    """

    supports_higher_order_operators = True

    def __init__(self, refusals: Refusals) -> None:
        super().__init__()
        self._refusals = refusals
        self.traffic: Any = None

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Say that this mode is part of the machine, or `torch.compile` would leave everything uncompiled.

        Apple's would have to be taught more of it first.
        """
        return memory.machine.kind == "cuda"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            return self._higher(func, args, kwargs)
        if torch._C._get_dispatch_mode(_FAKE) is not None:
            return func(*args, **kwargs)
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # a DTensor, say, takes itself apart: its parts come through here again
        if _is_composite(func) and (torch.is_inference_mode_enabled() or any(map(Tensor.is_inference, _tensors(args)))):
            with self:  # for tensors of inference nothing else has taken it apart before
                return func.decompose(*args, **kwargs)
        tensors = list(_tensors(args))
        if not tensors and args and isinstance(args[0], (int, float)):
            args = tuple(_constants(func, args))
        if kwargs:
            tensors += _tensors(kwargs.values())
        homes = [home_of(tensor) for tensor in tensors]
        device = kwargs.get("device")
        asked = device is not None and is_gpu(device)
        if not asked and not any(homes):
            if thread.destination is not None:
                return self._moved(func, args, kwargs)
            result = self._execute(func, args, kwargs, tensors, None)
            if device is not None and not tensors and "pin_memory" not in kwargs and device.type == "cpu":
                _place_all(result, None)  # C++ made it, for whom is not known yet
            return result
        return self._run(func, args, kwargs, tensors, homes)

    def _higher(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operator that runs another: a DTensor's random numbers, whose place in the stream is not kept."""
        if func.name() != "run_dtensor_rng_op":
            return NotImplemented
        operation, *rest = args[2:]
        with self:
            return operation(*rest, **kwargs)

    def _run(self, func: Any, args: Any, kwargs: dict[str, Any], tensors: Sequence[Tensor], homes: Any) -> Any:
        name = func._schema.name.partition("::")[2]
        if thread.destination is not None and name == "_to_copy":
            return self._moved(func, args, kwargs)
        device = kwargs.get("device")
        if device is not None and device.type != "cpu" and not is_gpu(device):
            return func(*args, **kwargs)
        index = self._common(func, name, tensors, homes)
        if device is not None and is_gpu(device):
            index = gpu_index(device)
            kwargs = kwargs | {"device": _CPU}
        elif device is not None and kwargs.get("pin_memory") is False and tensors:  # from Python: it means the CPU
            index = None
        if index is not None:
            thread.last = index
            self._refusals.check(func, name, tensors)
        if "generator" in kwargs or "generator" in _argument_names(func):
            kwargs = generators.chosen(func, args, kwargs, index)
        if index is None:
            result = self._execute(func, args, kwargs, tensors, None)
        else:
            if nbytes := scratch_bytes(func, args):
                Home.taken_for_a_moment(nbytes, index)
            try:
                result = self._execute(func, args, kwargs, tensors, index)
            except RuntimeError as error:
                memory.refuse_what_no_gpu_holds(index, error)
                raise
            _place_all(result[:1] if name in _FIRST_ALONE else result, index)
            if is_recurrent(func):
                Home.taken_for_a_moment(workspace_bytes(func, args), index)
            if name.startswith("resize_") or name == "set_":
                self._follow(args[0])
        undecided = index is None and any(homes) and (device is None or "pin_memory" not in kwargs)
        if undecided and (name == "_to_copy" or name not in _MOVERS):
            if homes[0] is None and _writes_first(func):
                _leave(tensors)  # it goes on in a tensor of the CPU, so its others are there, too
            else:
                _place_all(result, None)  # made from undecided tensors
        return result

    def _moved(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Copy a tensor to another device."""
        destination, thread.destination = thread.destination, None
        kwargs = kwargs | {"device": _CPU} if kwargs.get("device") is not None else kwargs
        result = self._copied(func, args, kwargs, destination)
        if destination != "cpu":
            thread.arriving = not any(home_of(tensor) for tensor in _tensors(args[:1]))
            thread.arriving_rows = _rows(result) if thread.arriving else 0
            thread.arriving_weight = any(map(_is_weight, _tensors(args[:1])))
            try:
                _place_all(result, destination)
            finally:
                thread.arriving, thread.arriving_rows = False, 0
            storage = storage_of(result)
            if storage is not None:
                storage.rows = _rows(result)
        return result

    def _execute(
        self, func: Any, args: Any, kwargs: dict[str, Any], tensors: Sequence[Tensor], index: int | None
    ) -> Any:
        """Return what an operation returns; it runs on GPU `index`, or, with None, on the CPU."""
        if index is not None and func is aten.native_dropout.default:
            return generators.dropout(args[0], args[1], index)
        if index is not None and is_attention(func):
            return attention(func, args, kwargs)
        if index is not None and is_recurrent(func):
            return recurrent(func, args, dry=False)
        if index is not None and is_reduced_norm(func, args):
            return reduced_norm(func, args, kwargs)
        if index is not None and is_giant(func, args, kwargs):
            return shaped_like(func, args, kwargs)
        result = func(*args, **kwargs)
        if self.traffic is not None:
            self.traffic.saw(func, args, result)
        return result

    def _copied(self, func: Any, args: Any, kwargs: dict[str, Any], destination: Any) -> Any:
        """Return the copy of a tensor that goes to another device: a GPU's index, or "cpu"."""
        return func(*args, **kwargs)

    def _common(self, func: Any, name: str, tensors: Sequence[Tensor], homes: Sequence[Home | None]) -> int | None:
        """Return the GPU on which the operation runs; undecided tensors settle there.

        Raises:
            RuntimeError: its tensors are on several devices.
        """
        indices = {home.index for home in homes if home is not None and home.index is not None}
        if name in _MOVERS or func.namespace == "c10d":
            first = homes[0] if homes else None
            if first is not None and first.index is None and indices:
                first.settle(next(iter(indices)))
            return first.index if first is not None else None
        if not indices:
            return None  # undecided ones among themselves
        if len(indices) > 1 or (None in homes and func.namespace == "aten"):  # other libraries look for themselves
            self._refusals.meeting(func, name, tensors, homes, indices)
        index = next(iter(indices))
        for home in homes:
            if home is not None and home.index is None:
                home.settle(index)
        return index

    @staticmethod
    def _follow(tensor: Tensor) -> None:
        storage = storage_of(tensor)
        if storage is not None and (home := home_of_storage(storage)):
            home.resize(storage)


_names: dict[Any, frozenset[str]] = {}


def _argument_names(func: Any) -> frozenset[str]:
    if func not in _names:
        _names[func] = frozenset(argument.name for argument in func._schema.arguments)
    return _names[func]


def _rows(arrived: Tensor) -> int:
    """Return the first dimension of a tensor; that of a picture by itself, such as detectors take, is its color."""
    if not arrived.dim():
        return 0
    colored = arrived.dim() == 3 and arrived.is_floating_point() and arrived.shape[0] == _COLORS
    return NO_BATCH if colored and min(arrived.shape[1:]) >= _SIDE else arrived.shape[0]


def _is_weight(tensor: Tensor) -> bool:
    return isinstance(tensor, torch.nn.Parameter) or (tensor.dim() < 2 and tensor.is_floating_point())


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _constants(func: Any, args: Any) -> Iterator[Any]:
    """Yield the arguments, and tensors for the constants of TorchScript, which Python gets as numbers."""
    for value, argument in zip(args, func._schema.arguments, strict=False):
        if isinstance(value, (int, float)) and str(argument.type) == "Tensor":
            value = torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)
        yield value


def _writes_first(func: Any) -> bool:
    """Say whether an operation changes its first argument."""
    arguments = func._schema.arguments
    return bool(arguments and arguments[0].alias_info is not None and arguments[0].alias_info.is_write)


def _leave(tensors: Iterable[Tensor]) -> None:
    """Settle undecided tensors on the CPU."""
    for tensor in tensors:
        storage = storage_of(tensor)
        home = None if storage is None else home_of_storage(storage)
        if home is not None and home.index is None:
            del storage.home


def _place_all(result: Any, index: int | None) -> None:
    if isinstance(result, Tensor):
        place(result, index)
    elif isinstance(result, (list, tuple)):
        for part in result:
            _place_all(part, index)


@functools.cache
def _is_composite(func: Any) -> bool:
    """Say whether an operation is made of others, for its gradient's sake."""
    if not isinstance(func, torch._ops.OpOverload) or func.namespace == "prim":  # asks a fake tensor for its device
        return False
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)
