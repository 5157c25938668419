"""CUDA's rules for 16 bits, for tensors on a pretended GPU.

A tensor of the CPU passes through the CPU's autocast kernels, whose lists are shorter. Each operation on either list
gets a kernel that asks where its tensors are: on a pretended GPU it follows CUDA's list, on the CPU the kernel that was
there. The names are those that PyTorch registers for CUDA; a test compares them with the dispatcher's.
"""

import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey

from . import memory
from .dispatch import thread as dispatched
from .homes import on_gpu
from .patches import Patches

# `AT_FORALL_LOWER_PRECISION_FP` and its companions in aten/src/ATen/autocast_mode.h; all other names are FP32.
_SIXTEEN_BITS = """
    _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution
    cudnn_convolution cudnn_convolution_transpose prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear
    addbmm baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell
    rnn_tanh_cell rnn_relu_cell _scaled_dot_product_flash_attention scaled_dot_product_attention
"""
_WIDEST = "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"
_ASKED_FOR_FP32 = "prod softmax log_softmax cumprod cumsum linalg_vector_norm linalg_matrix_norm sum"
SIXTEEN_BITS, WIDEST = frozenset(_SIXTEEN_BITS.split()), frozenset(_WIDEST.split())
DTYPE_ARGUMENT = frozenset(_ASKED_FOR_FP32.split())  # by their argument `dtype`, without a copy of the input
_KEYS = torch._C.DispatchKeySet(DispatchKey.AutocastCPU)
_copies: dict[tuple[int, torch.dtype], tuple[Any, Tensor]] = {}  # autocast's cache: the 16-bit copies of parameters


class _Thread(threading.local):
    cpu = False  # whether autocast is on for the CPU: PyTorch reads it from the key that lets our kernels in


_thread = _Thread()


def _kernel(op: Any, name: str | None, cpu: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        if not _on_gpu(args, kwargs):
            if cpu is not None and _thread.cpu:
                return cpu.call_boxed(_KEYS, *args, **kwargs)
        elif name is None and op.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd):
            return op.decompose(*args, **kwargs)  # not on CUDA's list, but its parts may be
        elif name and torch.is_autocast_enabled(memory.machine.kind):
            args, kwargs = _cast(name, args, kwargs)
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            return op(*args, **kwargs)

    return kernel


def _on_gpu(args: Any, kwargs: dict[str, Any]) -> bool:
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            if on_gpu(value):
                return True
        elif isinstance(value, (list, tuple)) and _on_gpu(value, {}):
            return True
    return False


def _cast(name: str, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the arguments as CUDA's autocast hands them on.

    Raises:
        RuntimeError: for `binary_cross_entropy`, which it refuses.
    """
    if name == "binary_cross_entropy":
        raise RuntimeError(
            "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
            "Many models use a sigmoid layer right before the binary cross entropy layer.\nIn this case, combine the "
            "two layers using torch.nn.functional.binary_cross_entropy_with_logits\nor torch.nn.BCEWithLogitsLoss.  "
            "binary_cross_entropy_with_logits and BCEWithLogits are\nsafe to autocast."
        )
    if name in DTYPE_ARGUMENT:
        sixteen = isinstance(args[0], Tensor) and args[0].dtype in (torch.float16, torch.bfloat16)
        asked = any(isinstance(value, torch.dtype) for value in (*args, *kwargs.values()))
        return (args[0].float(), *args[1:]) if sixteen and not asked else args, kwargs
    if name in WIDEST:
        wide = any(isinstance(v, Tensor) and v.dtype is torch.float32 for v in (*args, *kwargs.values()))
        if not wide:
            return args, kwargs
        dtype = torch.float32
    else:
        dtype = torch.get_autocast_dtype(memory.machine.kind) if name in SIXTEEN_BITS else torch.float32
    args = tuple(_convert(value, dtype) for value in args)
    return args, {key: _convert(value, dtype) for key, value in kwargs.items()}


def _convert(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_convert(part, dtype) for part in value)
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.dtype in (dtype, torch.float64):
        return value
    if not on_gpu(value) and not hasattr(value, "__tensor_flatten__"):
        return value
    keeps = value.is_leaf and value.requires_grad and not value._is_view() and dtype is not torch.float32
    if not keeps or not torch.is_autocast_cache_enabled() or not torch.is_grad_enabled():
        return value.to(dtype)
    key = id(value), dtype
    known = _copies.get(key)
    if known is None or known[0]() is not value:
        dispatched.casting_weights = dtype
        try:
            _copies[key] = known = weakref.ref(value), value.to(dtype)
        finally:
            dispatched.casting_weights = None
    return known[1]


def install(patches: Patches) -> None:
    """Register the kernels."""
    library = torch.library.Library("aten", "IMPL")
    patches.later(library._destroy)
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    for full in torch._C._dispatch_get_all_op_names():
        listed = has(full, f"Autocast{memory.machine.kind.upper()}")
        if not full.startswith("aten::") or not (listed or has(full, "AutocastCPU")):
            continue
        packet, _, overload = full.removeprefix("aten::").partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        cpu = torch.library.get_kernel(full, "AutocastCPU") if has(full, "AutocastCPU") else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a kernel is replaced is meant
            library.impl(
                full.removeprefix("aten::"),
                _kernel(op, packet if listed else None, cpu),
                "AutocastCPU",
                allow_override=True,
            )
    enabled, enable, clear = torch.is_autocast_enabled, torch.set_autocast_enabled, torch.clear_autocast_cache

    def is_enabled(device_type: str = memory.machine.kind) -> bool:
        return _thread.cpu if device_type == "cpu" else enabled(device_type)

    def set_enabled(*args: Any) -> None:
        enable(*args)
        if args[0] == "cpu":
            _thread.cpu = args[1]
        idle = not (_thread.cpu or enabled(memory.machine.kind))
        torch._C._dispatch_tls_set_dispatch_key_excluded(DispatchKey.AutocastCPU, idle)

    def clear_cache() -> None:
        clear()
        _copies.clear()

    patches.put(torch, "is_autocast_enabled", is_enabled)
    patches.put(torch, "set_autocast_enabled", set_enabled)
    patches.put(torch, "clear_autocast_cache", clear_cache)
    patches.later(_copies.clear)
