"""The package `flash_attn`, which installs only where CUDA is: its usual functions, for code of the program's own.

Its attention saves what PyTorch's flash attention saves, which is the same kernel. Sequences that are packed into one
count as one, so the work of their attention is overestimated, and the memory is not. Libraries that ask whether the
package is there hear that it is not.
"""

import importlib.abc
import importlib.machinery
import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..patches import Patches
from ..user_line import is_users
from ..waits import Waits


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    **_: Any,
) -> Tensor:
    """Return attention over q: (B, S, H, D) and k, v: (B, T, H of keys, D), shaped as q."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    shared = q.shape[1] != k.shape[1]
    out = F.scaled_dot_product_attention(
        q, k, v, dropout_p=dropout_p, is_causal=causal, scale=softmax_scale, enable_gqa=shared
    )
    return out.transpose(1, 2)


def flash_attn_qkvpacked_func(qkv: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """qkv: (B, S, 3, H, D)."""
    return flash_attn_func(*qkv.unbind(2), *args, **kwargs)


def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """q: (B, S, H, D), kv: (B, T, 2, H, D)."""
    return flash_attn_func(q, *kv.unbind(2), *args, **kwargs)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    """q: (tokens, H, D), and k, v alike."""
    return flash_attn_func(q[None], k[None], v[None], *args, **kwargs)[0]


class _Rotary(torch.autograd.Function):
    """A kernel that saves the angles, and whose result is as large as its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return torch.zeros_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return torch.zeros_like(gradient), None, None


def apply_rotary_emb(x: Tensor, cos: Tensor, sin: Tensor, *_: Any, **__: Any) -> Tensor:
    """x: (B, S, H, D); cos, sin: (S, half of the dimensions that are turned)."""
    return _Rotary.apply(x, cos, sin)


def layer_norm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    *,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    is_rms_norm: bool = False,
    **_: Any,
) -> Any:
    """Return the norm of x + residual: (..., n); with `prenorm`, that sum as well."""
    x = F.dropout(x, dropout_p) if dropout_p else x
    if residual is not None:
        x = x + residual
    x = x.float() if residual_in_fp32 else x
    out = F.rms_norm(x, weight.shape, weight, eps) if is_rms_norm else F.layer_norm(x, weight.shape, weight, bias, eps)
    return (out, x) if prenorm else out


def rms_norm_fn(x: Tensor, weight: Tensor, bias: Tensor | None, *args: Any, **kwargs: Any) -> Any:
    """The same without the mean."""
    return layer_norm_fn(x, weight, bias, *args, **kwargs | {"is_rms_norm": True})


_ATTENTION = {
    f.__name__: f
    for f in (flash_attn_func, flash_attn_qkvpacked_func, flash_attn_kvpacked_func, flash_attn_varlen_func)
}
_CONTENTS: dict[str, dict[str, Any]] = {
    "flash_attn": _ATTENTION,
    "flash_attn.flash_attn_interface": _ATTENTION,
    "flash_attn.layers": {},
    "flash_attn.layers.rotary": {"apply_rotary_emb": apply_rotary_emb},
    "flash_attn.ops": {},
    "flash_attn.ops.triton": {},
    "flash_attn.ops.triton.layer_norm": {"layer_norm_fn": layer_norm_fn, "rms_norm_fn": rms_norm_fn},
}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the package for the program's own code, where nothing else finds it."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Return the stand-in for a module of the package."""
        if name not in _CONTENTS or not _is_asked_for():
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> Any:
        """Let Python make an empty module."""

    def exec_module(self, module: Any) -> None:
        """Fill the module."""
        vars(module).update(_CONTENTS[module.__name__])
        if module.__name__ == "flash_attn":
            self._waits.leave_out("flash_attn", "PyTorch's flash attention, which saves the same")


def _is_asked_for() -> bool:
    """Say whether the innermost frame that is not of Python's import is the program's."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None and is_users(frame)


def install(patches: Patches, waits: Waits) -> None:
    """Offer the package until everything is put back."""
    finder = _Finder(waits)
    sys.meta_path.append(finder)
    patches.later(lambda: sys.meta_path.remove(finder))
    for name in _CONTENTS:
        if name not in sys.modules:
            patches.later(lambda name=name: sys.modules.pop(name, None))
