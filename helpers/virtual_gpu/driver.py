"""The functions below `torch.cuda`: with these in `torch._C`, torch.cuda's own Python code runs as it is."""

import os
import types
from collections.abc import Iterator
from typing import Any

import torch

from . import generators, memory
from .machine import Machine
from .patches import Patches

_MULTIPROCESSORS = {"t4": 40, "a100": 108, "h100": 132}  # NVIDIA's data sheets
_CUDA = torch.version.cuda or "12.8"  # a build for the CPU names none; other packages compare theirs with PyTorch's
_MARKS = ("rangePushA", "rangePop", "rangeStartA", "rangeEnd", "deviceRangeStart", "deviceRangeEnd", "markA")  # NVTX
_L2 = 2**20  # bytes; a small cache, because labs take tensors that do not fit it, and a CPU has to compute with them


class _State:
    current = 0
    process: int | None = None  # the one that has initialized CUDA


class _Generators:
    """`torch.cuda.default_generators`."""

    def __getitem__(self, index: int) -> Any:
        return generators.default(index)

    def __iter__(self) -> Iterator[Any]:
        return (generators.default(index) for index in range(len(self)))

    def __len__(self) -> int:
        return torch.cuda.device_count()


def _properties(machine: Machine) -> types.SimpleNamespace:
    kind = machine.name.split()[-1].partition("-")[0]
    major, minor = machine.capability
    return types.SimpleNamespace(
        name=machine.name,
        major=major,
        minor=minor,
        total_memory=machine.total_memory,
        multi_processor_count=_MULTIPROCESSORS.get(kind, 80),
        L2_cache_size=_L2,
        warp_size=32,
        max_threads_per_multi_processor=1024 if machine.capability == (7, 5) else 2048,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=48 * 1024,
        is_integrated=0,
        is_multi_gpu_board=0,
        gcnArchName="",
    )


def _set_device(index: int) -> None:
    if index >= torch.cuda.device_count():
        raise RuntimeError("CUDA error: invalid device ordinal")
    if index >= 0:
        _State.current = index


def _exchange(index: int) -> int:
    before = _State.current
    _set_device(index)
    return before


def _initialise() -> None:
    if not torch.cuda.device_count():
        raise RuntimeError("No CUDA GPUs are available")
    _State.process = os.getpid()


def _index(device: Any) -> int:
    return torch.cuda._utils._get_device_index(device, optional=True)


def _memory_info(device: Any = None) -> tuple[int, int]:
    torch.cuda._lazy_init()
    held = memory.gpu(_index(device)).cache.reserved
    total, context = memory.machine.total_memory, memory.machine.context
    return total - context - held, total


def _allocator_settings() -> dict[str, bool]:
    return {"expandable_segments": memory.expandable_segments()}


def _empty_caches() -> None:
    for gpu in list(memory._gpus.values()):
        gpu.cache.empty_cache()


def install(patches: Patches, machine: Machine) -> None:
    """Put the functions in place."""
    c, cuda = torch._C, torch.cuda
    properties = _properties(machine)
    functions = {
        "_cuda_getDeviceCount": lambda: len_visible(machine.gpus),
        "_cuda_init": _initialise,
        "_cuda_isInBadFork": lambda: _State.process not in (None, os.getpid()),
        "_cuda_getDevice": lambda: _State.current,
        "_cuda_setDevice": _set_device,
        "_cuda_exchangeDevice": _exchange,
        "_cuda_maybeExchangeDevice": _exchange,
        "_accelerator_getAccelerator": lambda: torch.device("cuda"),
        "_accelerator_getDeviceIndex": lambda: _State.current,
        "_accelerator_setDeviceIndex": _set_device,
        "_accelerator_synchronizeDevice": lambda index: None,
        "_accelerator_exchangeDevice": _exchange,
        "_accelerator_maybeExchangeDevice": _exchange,
        "_cuda_synchronize": lambda: None,
        "_cuda_ipc_collect": lambda: None,
        "_cuda_getCompiledVersion": lambda: 1000 * int(_CUDA.split(".")[0]) + 10 * int(_CUDA.split(".")[1]),
        "_cuda_getArchFlags": lambda: "sm_75 sm_80 sm_86 sm_90",
        "_cuda_getCurrentRawStream": lambda index: 0,
        "_cuda_emptyCache": _empty_caches,
        "_cuda_memoryStats": memory.statistics,
        "_cuda_memorySnapshot": lambda *_: _snapshot(machine),
        "_cuda_record_memory_history": memory.history.start,
        "_cuda_resetPeakMemoryStats": lambda index: memory.gpu(index).reset_peaks(),
        "_cuda_resetAccumulatedMemoryStats": lambda index: None,
        "_cuda_canDeviceAccessPeer": lambda a, b: True,
        "_cuda_set_sync_debug_mode": lambda mode: None,
        "_cuda_get_sync_debug_mode": lambda: 0,
        "_cuda_setMemoryFraction": lambda fraction, device: memory.gpu(device).limit(fraction),
        "_get_accelerator": lambda check=False: torch.device("cuda"),
    }
    patches.put_all(c, functions)
    runtime = _runtime()
    patches.put(cuda.nvtx, "_nvtx", types.SimpleNamespace(**dict.fromkeys(_MARKS, lambda *_: 0)))
    above = {
        "_is_in_bad_fork": c._cuda_isInBadFork,
        "_exchange_device": _exchange,
        "_maybe_exchange_device": lambda index: _exchange(index),
        "_cudart": runtime,
        "cudart": lambda: runtime,
        "_raw_device_count_nvml": lambda: machine.gpus,
        "_raw_device_uuid_nvml": lambda: None,
        "_get_device_properties": lambda index: properties,
        "get_device_properties": lambda device=None: properties,
        "default_generators": _Generators(),
        "mem_get_info": _memory_info,
        "_initialized": False,
        "_cached_device_count": None,
        "_queued_calls": [],
    }
    patches.put_all(cuda, above)
    patches.put(cuda.memory, "mem_get_info", _memory_info)
    patches.put(torch.version, "cuda", _CUDA)
    patches.put_all(torch.backends.cudnn, {"is_available": lambda: True, "version": lambda: 91002})
    patches.put_all(_State, {"current": 0, "process": None})


def _runtime() -> Any:
    """Return what stands for CUDA's runtime: profilers start and stop."""
    return types.SimpleNamespace(
        cudaError=types.SimpleNamespace(success=0),
        cudaGetErrorString=str,
        cudaProfilerStart=lambda: 0,
        cudaProfilerStop=lambda: 0,
    )


def _snapshot(machine: Machine) -> dict[str, Any]:
    traces = [memory.history.of(index) for index in range(machine.gpus)]
    return {"segments": [], "device_traces": traces, "allocator_settings": _allocator_settings()}


def count_named_gpus(patches: Patches, machine: Machine) -> None:
    """Let CUDA_VISIBLE_DEVICES name GPUs by any number: those of the machine for which a program was written."""
    patches.put(torch.cuda, "_device_count_nvml", lambda: len_visible(machine.gpus))


def len_visible(gpus: int) -> int:
    """Return how many of the machine's GPUs CUDA_VISIBLE_DEVICES leaves."""
    return min(gpus, len(torch.cuda._parse_visible_devices()))
