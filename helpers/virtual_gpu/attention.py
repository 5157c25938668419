"""CUDA's fused attention kernels, computed on the CPU where a virtual GPU computes at all.

Their results have CUDA's shapes, because the backward pass keeps them; their values are those of plain attention.
"""

import math
from typing import Any

import torch
from torch import Tensor

from .shapes import signature, specs_of

_aten = torch.ops.aten
_FORWARD = {_aten._scaled_dot_product_flash_attention, _aten._scaled_dot_product_efficient_attention}
_BACKWARD = {
    _aten._scaled_dot_product_flash_attention_backward,
    _aten._scaled_dot_product_efficient_attention_backward,
}


def is_attention(func: Any) -> bool:
    """Say whether an operation is a fused attention kernel of CUDA, forward or backward."""
    return func._overloadpacket in _FORWARD or func._overloadpacket in _BACKWARD


def attention(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return what the kernel returns."""
    named = {
        argument.name: argument.default_value for argument in func._schema.arguments if argument.has_default_value()
    }
    named |= dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
    specs = specs_of(signature(func, args, kwargs), func, args, kwargs)
    results = [torch.empty_strided(*s[:2], dtype=s.dtype) if hasattr(s, "stride") else s for s in specs]
    seed_at = {9: 6, 4: 2}.get(len(specs)) if func._overloadpacket in _FORWARD else None
    if seed_at is not None:
        results[seed_at].fill_(int(torch.randint(2**31, ())) if named["dropout_p"] else 0)
        weights, keep = _weights(named, results[seed_at])
        results[0].copy_((weights * keep) @ _heads(named["value"], named["query"]).float())
        return tuple(results)
    for result, values in zip(results, _gradients(named), strict=False):
        if result is not None and values is not None:
            result.copy_(values)
    return tuple(results)


def _heads(x: Tensor, like: Tensor) -> Tensor:
    """Repeat keys or values for the queries of their group; x is (B, nh or groups, T, hs)."""
    return x if x.shape[1] == like.shape[1] else x.repeat_interleave(like.shape[1] // x.shape[1], 1)


def _weights(named: dict[str, Any], seed: Tensor) -> tuple[Tensor, Tensor | float]:
    """Return the softmax of the scores, (B, nh, T, S), and what dropout keeps of it."""
    q, k = named["query"], _heads(named["key"], named["query"])
    scale = named["scale"] or 1 / math.sqrt(q.shape[-1])
    scores = q.float() @ k.float().transpose(-2, -1) * scale
    if named.get("attn_bias") is not None:
        scores = scores + named["attn_bias"].float()
    if named["is_causal"]:
        above = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(above, -math.inf)
    keep: Tensor | float = 1.0
    if p := named["dropout_p"]:
        drawn = torch.rand(scores.shape, generator=torch.Generator().manual_seed(int(seed.flatten()[0])))
        keep = (drawn >= p) / (1 - p)
    return scores.softmax(-1), keep


def _gradients(named: dict[str, Any]) -> tuple[Tensor | None, ...]:
    """Return the gradients of q, k and v, and of the bias, in FP32."""
    q, k, v = (named[name] for name in ("query", "key", "value"))
    gradient = named.get("grad_out", named.get("grad_out_")).float()
    weights, keep = _weights(named, named["philox_seed"])
    wide_k, wide_v = _heads(k, q).float(), _heads(v, q).float()
    for_v = (weights * keep).transpose(-2, -1) @ gradient
    for_weights = gradient @ wide_v.transpose(-2, -1) * keep
    for_scores = weights * (for_weights - (for_weights * weights).sum(-1, keepdim=True))
    scale = named["scale"] or 1 / math.sqrt(q.shape[-1])
    for_k = for_scores.transpose(-2, -1) @ q.float() * scale
    grouped = [x.unflatten(1, (y.shape[1], -1)).sum(2) for x, y in ((for_k, k), (for_v, v))]
    return for_scores @ wide_k * scale, *grouped, for_scores
