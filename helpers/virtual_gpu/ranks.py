"""NCCL, spoken over gloo: ranks on pretended GPUs exchange the tensors that lie in the CPU's memory.

What NCCL refuses is refused: tensors of the CPU in a group that has NCCL alone, and two ranks on one GPU. What it can
and gloo cannot, an average, is a sum and a division. Everything else is gloo's, above all the order of things when
ranks disagree: NCCL's collectives are asynchronous, these are not.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from .patches import Patches

_NAMES = """
    all_reduce broadcast reduce all_gather all_gather_into_tensor all_gather_single reduce_scatter gather scatter
    reduce_scatter_tensor reduce_scatter_single all_to_all all_to_all_single send recv isend irecv
"""
COLLECTIVES = tuple(_NAMES.split())
_spoken: dict[Any, str] = {}  # group -> the backend that was asked for
_taken: set[Any] = set()  # groups in which this rank has said which GPU it uses


class _Done:
    """The handle of a collective that is over."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def wait(self, timeout: Any = None) -> bool:
        """Wait for nothing."""
        return True

    def is_completed(self) -> bool:
        """Say that it is over."""
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def _over_gloo(backend: str | None) -> str | None:
    return None if backend is None else str(backend).lower().replace("nccl", "gloo")


def _group(group: Any) -> Any:
    return c10d._get_default_group() if group is None else group


def _backend(group: Any = None) -> str:
    asked = _spoken.get(_group(group))
    if asked is None:
        return "gloo"
    for part in asked.split(","):
        if part.startswith("cuda:"):
            return part.removeprefix("cuda:")
    return asked


def _refuse(group: Any, tensors: list[Tensor]) -> None:
    """Raise what NCCL raises for these tensors.

    Raises:
        RuntimeError: a tensor of the CPU in a group that has NCCL alone.
        torch.distributed.DistBackendError: another rank uses this GPU.
    """
    asked = _spoken.get(_group(group), "gloo")
    if "nccl" not in asked:
        return
    devices = {tensor.device for tensor in tensors}
    if asked == "nccl" and any(device.type == "cpu" for device in devices):
        raise RuntimeError("No backend type associated with device type cpu")
    gpu = next((device.index for device in devices if device.type == "cuda"), None)
    if gpu is None or _group(group) in _taken:
        return
    group = _group(group)
    _taken.add(group)
    store, name, me = c10d._get_default_store(), group.group_name, dist.get_rank()
    store.set(f"pretence/{name}/{me}", str(gpu))
    for rank in dist.get_process_group_ranks(group):
        key = f"pretence/{name}/{rank}"
        if rank != me and store.check([key]) and int(store.get(key)) == gpu:
            raise dist.DistBackendError(
                "NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)\nncclInvalidUsage: This usually "
                "reflects invalid usage of NCCL library.\nLast error:\n"
                f"Duplicate GPU detected : rank {me} and rank {rank} both on CUDA device {gpu}"
            )


def _tensors(values: Any) -> list[Tensor]:
    return [
        tensor
        for value in values
        for tensor in ([value] if isinstance(value, Tensor) else _tensors(value) if isinstance(value, list) else [])
    ]


def _collective(function: Callable[..., Any]) -> Callable[..., Any]:
    parameters = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def collective(*args: Any, **kwargs: Any) -> Any:
        named = dict(zip(parameters, args, strict=False)) | kwargs
        group = named.get("group")
        _refuse(group, _tensors(named.values()))
        if function.__name__ == "all_gather_single":  # NCCL counts elements; gloo wants shapes that match
            named |= {name: named[name].view(-1) for name in ("output_tensor", "input_tensor")}
            return function(**named)
        if named.get("op") != dist.ReduceOp.AVG or "nccl" not in _spoken.get(_group(group), ""):
            return function(*args, **kwargs)
        asynchronous = named.pop("async_op", False)
        work = function(**named | {"op": dist.ReduceOp.SUM})
        output = next(named[name] for name in ("output", "tensor") if name in named)
        output /= dist.get_world_size(group)
        return _Done(work) if asynchronous else None

    return collective


def install(patches: Patches) -> None:
    """Put NCCL into torch.distributed."""
    initialise, new_group, destroy = c10d.init_process_group, c10d.new_group, c10d.destroy_process_group

    @functools.wraps(initialise)
    def init_process_group(backend: str | None = None, *args: Any, device_id: Any = None, **kwargs: Any) -> None:
        asked = str(backend).lower() if backend is not None else "cpu:gloo,cuda:nccl"
        if device_id is not None and torch.device(device_id).index is None:
            raise ValueError("init_process_group device_id parameter must be a device with an index")
        initialise(_over_gloo(asked) if backend is not None else None, *args, **kwargs)
        if torch.cuda.is_available():
            _spoken[c10d._get_default_group()] = asked

    @functools.wraps(new_group)
    def made(ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device_id", None)
        group = new_group(ranks, timeout, _over_gloo(backend), *args, **kwargs)
        asked = backend or _spoken.get(c10d._get_default_group())
        if asked is not None and isinstance(group, dist.ProcessGroup):
            _spoken[group] = str(asked).lower()
        return group

    @functools.wraps(destroy)
    def destroy_process_group(group: Any = None) -> None:
        destroy(group)
        if group is None:
            _spoken.clear()
            _taken.clear()

    replaced = {
        "init_process_group": init_process_group,
        "new_group": made,
        "destroy_process_group": destroy_process_group,
        "get_backend": _backend,
        **{name: _collective(getattr(c10d, name)) for name in COLLECTIVES if hasattr(c10d, name)},
    }
    from torch.distributed import device_mesh

    for module in (dist, c10d, device_mesh):
        for name, function in replaced.items():
            if hasattr(module, name):
                patches.put(module, name, function)
    install_nccl(patches)


def install_nccl(patches: Patches) -> None:
    """Let PyTorch find NCCL, and FSDP's first version the GPUs."""
    patches.put_all(torch.cuda.nccl, {"version": lambda: (2, 27, 5), "is_available": lambda tensors: False})
    for module in (dist, c10d):
        patches.put(module, "is_nccl_available", lambda: True)
    patches.after_import("torch.distributed.fsdp._init_utils", _numbers_are_gpus)


_base_device = torch.device


class _Numbers(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, _base_device)

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.device:
        first = args[0] if args else kwargs.get("device")
        number = len(args) + len(kwargs) == 1 and isinstance(first, int)
        return _base_device("cuda", first) if number else _base_device(*args, **kwargs)

    def __getattr__(cls, name: str) -> Any:
        return getattr(_base_device, name)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is _base_device

    def __hash__(cls) -> int:
        return hash(_base_device)


class Device(metaclass=_Numbers):
    """`torch.device`, which takes a number for a GPU: a PyTorch without CUDA knows no such device."""


class _Torch:
    """The module torch as FSDP's first version sees it."""

    device = Device

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _numbers_are_gpus(patches: Patches, fsdp: Any) -> None:
    patches.put(fsdp, "torch", _Torch())
