"""FlexAttention: in a dry run it takes the memory of its compiled kernel.

The kernel saves its inputs, its output and one number for each query, as the fused attention does which stands in for
it. What `score_mod` and the mask compute is left out.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .patches import Patches
from .waits import Waits

_SLOW = "flex_attention_performance"  # PyTorch's warning of a call that is not compiled


def install(patches: Patches, waits: Waits) -> None:
    """Teach `torch.nn.attention.flex_attention` as soon as it is imported."""
    patches.after_import("torch.nn.attention.flex_attention", lambda p, module: _fused(p, module, waits))


def _fused(patches: Patches, module: Any, waits: Waits) -> None:
    def attend(
        q: Tensor, k: Tensor, v: Tensor, score_mod: Any, block_mask: Any, scale: float, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q: (B, H, T, d); k, v: (B, H or fewer, S, d). Returns the output and two numbers for each query."""
        waits.leave_out("flex_attention", "the memory of its compiled kernel; all pairs count as attended")
        k, v = (x.expand(q.shape[0], -1, -1, -1) for x in (k, v))
        out = F.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=q.shape[1] != k.shape[1])
        return out, *(torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device) for _ in range(2))

    def uncompiled(function: Any, **_: Any) -> Any:
        return function

    warn = module._warn_once

    def warned(warning_id: str, *args: Any, **kwargs: Any) -> None:
        if warning_id != _SLOW:
            warn(warning_id, *args, **kwargs)

    patches.put_all(module, {"flex_attention_hop": attend, "_warn_once": warned})
    patches.put(module, "torch", _Uncompiled(uncompiled))


class _Uncompiled:
    """The module torch with another `compile`: the program's own note says enough."""

    def __init__(self, compiled: Any) -> None:
        self.compile = compiled

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)
