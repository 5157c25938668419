"""Attention on one rank: its heads of every sequence, or its tokens of every head."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .adapters import Adapter, frozen_products, linear
from .kernels import Norm, one_pass, rms_norm
from .layout import Layout
from .wire import Wire, enter, exchange, leave, products


@dataclass(frozen=True)
class Wires:
    """The wires of a rank, one for each dimension in which blocks send."""

    tensor: Wire
    context: Wire
    expert: Wire


def column(x: Tensor, layers: list[nn.Linear], wire: Wire, layout: Layout) -> list[Tensor]:
    """Return the results of layers whose columns are split over `wire`; x: (B, S, D), or this rank's tokens of it."""
    gathers = wire.size > 1 and layout.splits_tokens
    if layout.engine != "megatron" or not (gathers or wire.size == 1 or layout.packed):
        x = enter(x, wire, layout.splits_tokens)
        return [layer(x) for layer in layers]
    if not gathers and wire.size > 1:
        x, wire = enter(x, wire, False), Wire(wire.name, 1, wire.listener)
    weights = [layer.weight for layer in layers]
    if layout.lora_rank:
        outs = frozen_products(x, weights, wire)
    else:
        outs = products(x, weights, wire, layout.uses_transformer_engine)
    return [out if layer.bias is None else out + layer.bias for out, layer in zip(outs, layers, strict=True)]


def columns_of(layout: Layout, widths: list[int], bias: bool) -> nn.ModuleList:
    """Return layers with so many outputs each, or one in their place, whose outputs lie side by side."""
    widths = [sum(widths)] if layout.packed else widths
    return nn.ModuleList(linear(layout, layout.arch.hidden, width, bias) for width in widths)


def parts(outs: list[Tensor], widths: list[int]) -> list[Tensor]:
    """Return the outputs of layers with so many each; those of one layer in their place share its memory."""
    return outs if len(outs) == len(widths) else list(outs[0].split(widths, -1))


class Attention(nn.Module):
    """Attention with grouped queries: this tensor rank's heads.

    Where there are fewer heads of keys and values than ranks, each rank keeps a copy of the head that it needs.
    """

    def __init__(self, layout: Layout, wires: Wires, causal: bool = True) -> None:
        super().__init__()
        arch = layout.arch
        self.wires, self.layout, self.causal = wires, layout, causal
        self.heads, self.kv_heads = arch.heads // layout.tensor, max(1, arch.kv_heads // layout.tensor)
        self.head, self.rotates = arch.head_dim, not arch.positions
        self.widths = [heads * self.head for heads in (self.heads, self.kv_heads, self.kv_heads)]
        self.qkv = columns_of(layout, self.widths, arch.bias)
        self.out = linear(layout, self.widths[0], arch.hidden, arch.bias)
        self.adapters = None
        if layout.lora_rank:
            before = Adapter(layout, (arch.hidden, sum(self.widths)), wires.tensor)
            after = Adapter(layout, (self.widths[0], arch.hidden), wires.tensor, by_rows=True)
            self.adapters = nn.ModuleList((before, after))
        norms = (Norm(self.head, arch.layer_norm) for _ in "qk") if arch.qk_norm else (None, None)
        self.q_norm, self.k_norm = norms

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, S, D), or (B, S / tensor, D) where tokens are split; likewise the result."""
        outs = parts(column(x, list(self.qkv), self.wires.tensor, self.layout), self.widths)
        if self.adapters is not None:
            more = self.adapters[0](x).split(self.widths, -1)
            outs = [out + extra for out, extra in zip(outs, more, strict=True)]
        q, k, v = (out.unflatten(-1, (-1, self.head)) for out in outs)  # (B, S, heads, head)
        if self.q_norm is not None:  # in the tokens' order, which the kernel's result then has, too
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))  # (B, heads, S, head)
        if self.rotates:
            q, k = one_pass(q), one_pass(k)
        q, k, v = self._as_kernels_want(q, k, v)
        if self.layout.attention == "eager":
            out = scored(self.layout, q, k, v, not self.causal)
        else:
            method = self.layout.context_method if self.causal else BOTH_WAYS
            out = attend(q, k, v, self.wires.context, method)  # (B, heads, S, head)
        out = out.transpose(1, 2).flatten(2)  # (B, S, heads x head)
        if self.layout.uses_transformer_engine and self.layout.attention in ("fused", "flash") and len(out) > 1:
            out = out.clone()  # of (S, B, D): the fused kernel keeps its own (B, S, D)
        result = leave(self.out(out), self.wires.tensor, self.layout.splits_tokens)
        return result if self.adapters is None else result + self.adapters[1](out)

    def _as_kernels_want(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values in memory of their own where Transformer Engine's kernels want that.

        They may lie in one tensor; but not where keys are new and values are not (`get_qkv_layout` in its utils.py),
        nor on context ranks (`FusedAttention.forward` and `FlashAttention.forward` in its backends.py).
        """
        if not (self.layout.uses_transformer_engine and self.layout.packed):
            return q, k, v
        if self.rotates or self.q_norm is not None:
            return q, k, one_pass(v)
        return (one_pass(q), one_pass(k), one_pass(v)) if self.layout.context > 1 else (q, k, v)


class LatentAttention(nn.Module):
    """Multi-head latent attention (arXiv 2405.04434): keys and values grow out of one narrow vector per token.

    Flash attention wants values as wide as keys, so they are padded. On Hopper and Blackwell, Transformer Engine takes
    cuDNN's attention instead (`get_attention_backend` in its utils.py, `nvte_get_fused_attn_backend` in its
    fused_attn.cpp), which reads them as they are, in memory of their own (Megatron's multi_latent_attention.py).
    """

    def __init__(self, layout: Layout, wires: Wires) -> None:
        super().__init__()
        arch = layout.arch
        self.wires, self.layout = wires, layout
        self.by_tokens = layout.splits_tokens
        self.pads = not layout.uses_transformer_engine or wires.context.size > 1
        self.arch, self.heads = arch, arch.heads // layout.tensor
        linear = lambda n, m: nn.Linear(n, m, bias=False)  # noqa: E731
        wide = self.heads * arch.head_dim
        self.q_down = linear(arch.hidden, arch.q_lora) if arch.q_lora else None
        self.q_up = linear(arch.q_lora or arch.hidden, wide)
        self.kv_down = linear(arch.hidden, arch.kv_lora + arch.rope_dim)
        self.kv_up = linear(arch.kv_lora, self.heads * (arch.head_dim - arch.rope_dim + arch.value_dim))
        self.q_norm = nn.Parameter(torch.empty(arch.q_lora)) if arch.q_lora else None
        self.kv_norm = nn.Parameter(torch.empty(arch.kv_lora))
        self.out = linear(self.heads * arch.value_dim, arch.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, S, D), or (B, S / tensor, D) where tokens are split; likewise the result."""
        arch = self.arch
        x = enter(x, self.wires.tensor, self.by_tokens)
        narrow = rms_norm(self.q_down(x), self.q_norm) if self.q_down is not None else x
        q = self.q_up(narrow).unflatten(-1, (self.heads, arch.head_dim)).transpose(1, 2)
        latent, rotated = self.kv_down(x).split([arch.kv_lora, arch.rope_dim], -1)
        grown = self.kv_up(rms_norm(latent, self.kv_norm)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        plain, v = grown.split([arch.head_dim - arch.rope_dim, arch.value_dim], -1)
        shared = one_pass(rotated).unsqueeze(1).expand(-1, self.heads, -1, -1)  # one rotated key for all heads
        k = torch.cat([plain, shared], -1)
        if self.layout.attention == "eager":
            out = scored(self.layout, one_pass(q), k, v)
        elif self.pads:
            padded = F.pad(v, (0, arch.head_dim - arch.value_dim))
            method = self.layout.context_method
            out = attend(one_pass(q), k, padded, self.wires.context, method)[..., : arch.value_dim]
        else:
            out = cudnn(*(t.transpose(1, 2).contiguous().transpose(1, 2) for t in (one_pass(q), k, one_pass(v))))
        return leave(self.out(out.transpose(1, 2).flatten(2)), self.wires.tensor, self.by_tokens)


def attention_of(layout: Layout, wires: Wires, causal: bool = True) -> nn.Module:
    """Return the attention of a layout's blocks."""
    return LatentAttention(layout, wires) if layout.arch.kv_lora else Attention(layout, wires, causal)


def scored(layout: Layout, q: Tensor, k: Tensor, v: Tensor, padded: bool = False) -> Tensor:
    """Return `eager` attention as a layout has it, which selective recomputation computes again.

    That tokens may be `padded` costs memory in Transformer Engine alone.
    """
    run = partial(eager, wide=not layout.softmax_fusion, padded=padded and not layout.own_modules)
    return checkpoint(run, q, k, v, **_PLAINLY) if layout.recompute == "selective" else run(q, k, v)


BOTH_WAYS = "both ways"  # on one context rank


def attend(q: Tensor, k: Tensor, v: Tensor, wire: Wire, method: str) -> Tensor:
    """Return causal attention of q (B, heads, S, head) on k and v (B, kv heads, S, head), S of this context rank.

    `method` is of context ranks, or `BOTH_WAYS` for attention that is not causal.
    """
    if wire.size == 1:
        return flash(q, k, v, method != BOTH_WAYS)
    if method == "ring":
        return _Ring.apply(q, k, v, wire)
    q, k, v = (exchange(_repeated(t, wire.size), wire, 1, 2) for t in (q, k, v))  # all tokens, fewer heads
    return exchange(flash(q, k, v), wire, 2, 1)


def _repeated(x: Tensor, ranks: int) -> Tensor:
    """Return x with so many copies of its heads that `ranks` divide them."""
    heads = x.shape[1]
    return x if heads % ranks == 0 else x.repeat_interleave(ranks // heads if ranks % heads == 0 else ranks, 1)


def flash(q: Tensor, k: Tensor, v: Tensor, causal: bool = True) -> Tensor:
    """Return fused attention, as CUDA's flash kernel keeps tensors for it; FP32 takes the memory-efficient one."""
    if q.dtype != torch.float32:
        return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)[0]
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) if t.shape[1] != q.shape[1] else t for t in (k, v))
    return torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, causal)[0]


def cudnn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return causal attention by cuDNN's kernel, whose values, and result, may have heads of their own size."""
    return torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, True)[0]


def eager(q: Tensor, k: Tensor, v: Tensor, wide: bool = False, padded: bool = False) -> Tensor:
    """Return attention with its scores in memory, and dropout on them; the mask is part of the softmax's kernel.

    A `wide` softmax is one of FP32 numbers that keeps its result in FP32, as Megatron's is where it is not fused
    (`forward_torch_softmax` in its fused_softmax.py). Transformer Engine sets the rows of `padded` tokens to zero once
    more, by a mask that it makes anew in each layer (`UnfusedDotProductAttention` in its backends.py).
    """
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) if t.shape[1] != q.shape[1] else t for t in (k, v))
    shares = torch.softmax(torch.matmul(q, k.transpose(-2, -1)), -1, torch.float32 if wide else None).to(q.dtype)
    if padded:
        shares = shares.masked_fill(torch.zeros(len(q), 1, q.shape[2], k.shape[2], dtype=torch.bool), 0.0)
    return torch.matmul(torch.native_dropout(shares, 0.1, True)[0], v)


_PLAINLY = {"use_reentrant": False, "preserve_rng_state": False, "determinism_check": "none"}


class _Ring(torch.autograd.Function):
    """Ring attention: keys and values visit every rank, and each adds its part to the result.

    With the zigzag order (the first and the last part of a sequence on one rank, and so on) every rank has the same
    work: one causal half block, then for each visitor half of a full block. While a block is worked on, the next one
    is on its way.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, wire: Wire) -> Tensor:
        kv = torch.stack((k, v))
        coming = wire.shift(kv)
        out, lse = _block(q, k, v, True)
        total, lse = out.float(), lse.clone()  # selective checkpointing may keep what the kernel returned
        half = q.shape[2] // 2
        for visitors in range(wire.size - 1, 0, -1):
            visiting = wire.arrived(coming)
            coming = wire.shift(visiting) if visitors > 1 else None
            part, part_lse = _block(q[:, :, half:], visiting[0], visiting[1], False)
            total[:, :, half:] += part  # rescaled by both log-sum-exps, in one pass
            lse[:, :, half:] += part_lse
        out = total.to(q.dtype)
        ctx.save_for_backward(q, kv, out, lse)
        ctx.wire = wire
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, kv, out, lse = ctx.saved_tensors
        coming = ctx.wire.shift(kv)
        k, v = kv
        dq, dk, dv = _block_backward(gradient, (q, k, v), out, lse, True)
        dq, dkv = dq.float(), torch.stack((dk, dv)).float()
        half = q.shape[2] // 2
        for visitors in range(ctx.wire.size - 1, 0, -1):
            visiting, dkv = ctx.wire.arrived(coming), ctx.wire.shift(dkv)  # a block's gradient goes where it goes
            coming = ctx.wire.shift(visiting) if visitors > 1 else None
            operands = (q[:, :, half:], visiting[0], visiting[1])
            parts = _block_backward(gradient[:, :, half:], operands, out[:, :, half:], lse[:, :, half:], False)
            dq[:, :, half:] += parts[0]
            dkv = ctx.wire.arrived(dkv)
            dkv += torch.stack(parts[1:])
        dkv = ctx.wire.arrived(ctx.wire.shift(dkv))  # home again
        return dq.to(q.dtype), dkv[0].to(k.dtype), dkv[1].to(v.dtype), None


def _block(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Return the attention of one pair of blocks, and its log-sum-exp (B, heads, S)."""
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)[:2]


def _block_backward(
    gradient: Tensor, operands: tuple[Tensor, Tensor, Tensor], out: Tensor, lse: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = operands
    state = torch.empty((), dtype=torch.uint64, device=q.device)
    return torch.ops.aten._scaled_dot_product_flash_attention_backward(
        gradient, q, k, v, out, lse, None, None, q.shape[2], k.shape[2], 0.0, causal, state, state
    )
