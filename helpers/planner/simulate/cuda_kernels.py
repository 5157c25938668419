"""Make a fake CPU keep what CUDA would keep.

A fake tensor on the CPU takes the CPU's path through PyTorch, which in places saves other tensors for the backward pass
than CUDA's: dropout a float mask instead of one byte an element, autocast other dtypes, attention other results. This
mode steps in there.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

FLASH_LARGEST_HEAD = 256
AMPERE = (8, 0)  # compute capability

# What autocast runs in FP32 on CUDA: "CUDA Ops that can autocast to float32" in the documentation of torch.amp, as far
# as training losses and models use them.
_FP32_NAMES = (
    "layer_norm group_norm softmax log_softmax cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss kl_div "
    "binary_cross_entropy_with_logits normalize cosine_similarity exp log log1p pow __pow__ __rpow__ reciprocal "
    "rsqrt sum prod norm cumsum cumprod softplus"
)
_FP32 = {
    function
    for owner in (torch, F, Tensor)
    for function in (getattr(owner, name, None) for name in _FP32_NAMES.split())
    if function is not None
}
_SDPA = F.scaled_dot_product_attention
_RMS_NORM = {F.rms_norm, torch.rms_norm}
if torch._C._dispatch_has_kernel_for_dispatch_key("aten::rms_norm", "AutocastCUDA"):  # not yet in PyTorch 2.9
    _FP32 |= _RMS_NORM


def _to_fp32(value: Any) -> Any:
    sixteen_bits = isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16)
    return value.float() if sixteen_bits else value


def _of_classes(logits: Tensor, target: Tensor, label_smoothing: float = 0.0, **_: Any) -> bool:
    """Return whether a cross-entropy has an index of a class for each row, and does not smooth."""
    return not target.is_floating_point() and label_smoothing == 0


class FusedRmsNorm(torch.autograd.Function):
    """The sizes of CUDA's fused kernel: it keeps its input and one number a row; the CPU keeps FP32 copies."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, dims: int) -> Tensor:
        """x: (..., n); weight: (n,) or None; `dims`: how many of the last dimensions are normed."""
        row_scales = torch.empty(x.shape[: x.dim() - dims], dtype=torch.float32, device=x.device)
        ctx.save_for_backward(x, weight, row_scales)
        return x.neg()  # one operation that reads and writes what the kernel does

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        """gradient: (..., n)."""
        x, weight, _ = ctx.saved_tensors
        return x + gradient, None if weight is None else torch.empty_like(weight), None


class CudaKernels(TorchFunctionMode):
    """A mode in which functions of torch keep the tensors that they would keep on a GPU.

    Args:
        autocast: the 16-bit dtype of `torch.autocast`, or None.
        packed: tokens in each of the documents of a sequence, which attend to their own alone; 0 for one document.

    Attributes:
        capability: the compute capability of the GPU, on which the choice of an attention kernel depends.
    """

    def __init__(self, autocast: torch.dtype | None, packed: int = 0) -> None:
        super().__init__()
        self._autocast, self._packed = autocast, packed
        self.capability = AMPERE

    @property
    def _new(self) -> bool:
        return self.capability >= AMPERE

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Stand for `torch.autocast("cuda", dtype)`, which is off without a GPU."""
        if self._autocast is None:
            yield
            return
        with torch.autocast("cpu", self._autocast):
            yield
        torch.clear_autocast_cache()  # inside the caller's autocast it would live on

    def __torch_function__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _SDPA:
            return self._of_documents(*args, **kwargs) if self._packed else self._attention(*args, **kwargs)
        if func is Tensor.item and args[0].is_floating_point():
            return 1.0  # a fake tensor has no value; optimizers ask their step counter for one
        if func is Tensor.__bool__:
            return True  # models ask whether all tokens count, because then attention needs no mask
        if func is F.dropout:
            return self._dropout(*args, **kwargs)
        if func is F.multi_head_attention_forward:  # itself calls functions of torch, with this mode off
            with patch.object(F, _SDPA.__name__, self._attention), patch.object(F, "dropout", self._dropout):
                return func(*args, **kwargs)
        run = self._rms_norm if func in _RMS_NORM else func
        casting = self._autocast and torch.is_autocast_enabled("cpu")
        if casting and func is F.cross_entropy and args[0].dtype == self._autocast and _of_classes(*args, **kwargs):
            run = self._cross_entropy
        elif casting and func in _FP32:
            with torch.autocast("cpu", enabled=False):
                return run(*(_to_fp32(a) for a in args), **{k: _to_fp32(v) for k, v in kwargs.items()})
        return run(*args, **kwargs)

    def _cross_entropy(
        self, logits: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str, **_: Any
    ) -> Tensor:
        """Keep the logarithms in 16 bits and, for `nll_loss`, in FP32 (measured on an H100).

        Autocast does not know `cross_entropy_loss`, which asks `log_softmax` for the dtype of the logits
        (`aten/src/ATen/native/LossNLL.cpp`).
        """
        with torch.autocast("cpu", enabled=False):
            logarithms = torch.log_softmax(logits, min(1, logits.dim() - 1))
            return F.nll_loss(logarithms.float(), target, weight, ignore_index=ignore_index, reduction=reduction)

    def _of_documents(self, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
        """Let each document be a sequence of its own, as kernels for sequences of several lengths do."""

        def cut(x: Tensor) -> Tensor:  # (B, H, S, D) -> (B * documents, H, tokens, D)
            return x.transpose(1, 2).reshape(-1, self._packed, x.shape[1], x.shape[3]).transpose(1, 2)

        out = self._attention(cut(q), cut(k), cut(v), **how)
        return out.transpose(1, 2).reshape(q.shape[0], q.shape[2], q.shape[1], -1).transpose(1, 2)

    def _attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """Choose as `sdp_utils.cpp` does: flash for 16 bits without a mask, else memory-efficient, else plain math.

        `torch.nn.attention.sdpa_kernel` can forbid kernels.
        """
        if self._autocast and torch.is_autocast_enabled("cpu"):
            q, k, v = (t.to(self._autocast) for t in (q, k, v))
        rest = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale}
        head = q.shape[-1]
        if torch.backends.cuda.flash_sdp_enabled() and attn_mask is None and self._flash_takes(q, v):
            if padding := -head % 8:  # the kernel wants heads of a multiple of 8; the scale is that of the true width
                scale = head**-0.5 if scale is None else scale
                q, k, v = (F.pad(t, (0, padding)) for t in (q, k, v))
            out = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, scale=scale)[0]
            return out[..., :head]
        grouped = enable_gqa and q.shape[-3] != k.shape[-3]  # which the memory-efficient kernel does not know
        if grouped or not torch.backends.cuda.mem_efficient_sdp_enabled() or not self._efficient_takes(q, v):
            return torch.ops.aten._scaled_dot_product_attention_math(
                q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=grouped
            )[0]
        if attn_mask is not None:
            if attn_mask.dtype == torch.bool:
                attn_mask = torch.zeros_like(attn_mask, dtype=q.dtype).masked_fill(~attn_mask, float("-inf"))
            attn_mask = attn_mask.expand(*q.shape[:-1], k.shape[-2])
        return torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, attn_mask, True, **rest)[0]

    def _flash_takes(self, q: Tensor, v: Tensor) -> bool:
        """Say whether the flash kernel can read tensors of these shapes and this dtype on this GPU."""
        sixteen = q.dtype in (torch.float16, torch.bfloat16)
        return sixteen and q.dim() == 4 and v.shape[-1] == q.shape[-1] <= FLASH_LARGEST_HEAD and self._new

    def _efficient_takes(self, q: Tensor, v: Tensor) -> bool:
        """Say whether the memory-efficient kernel can, which takes values of another width."""
        aligned = {torch.float16: 8, torch.float32: 4 if self._new else 1} | ({torch.bfloat16: 8} if self._new else {})
        to = aligned.get(q.dtype)
        return to is not None and q.dim() == 4 and q.shape[-1] % to == v.shape[-1] % to == 0

    @staticmethod
    def _dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or p == 0.0:
            return x
        return torch.native_dropout(x, p, True)[0]  # keeps one byte an element

    @staticmethod
    def _rms_norm(x: Tensor, shape: tuple[int, ...], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
        return FusedRmsNorm.apply(x, weight, len(shape))


def scratch_bytes(func: Any, args: Any) -> int:
    """Return the bytes that a CUDA kernel takes for itself while `func` runs: of those known, the attentions'.

    Both backward passes keep a number a row and add up the gradient of q in FP32; the memory-efficient one needs no
    memory for that if q is FP32. With grouped queries the flash kernel makes gradients of k and v for each query head
    first (`mha_bwd` in PyTorch's `flash_api.cpp`; `workspace_elements_gq` in `kernel_backward.h`).
    """
    aten = torch.ops.aten
    if func is aten._scaled_dot_product_flash_attention_backward.default:
        q, k = args[1], args[2]
        batch, heads, length, head = q.shape
        rows = batch * heads * (-(-length // 128) * 128)
        rounded = -(-head // 32) * 32
        expanded = 2 * batch * heads * k.shape[2] * head * q.element_size() if k.shape[1] != heads else 0
        return rows * rounded * 4 + rows * 4 + expanded
    if func is aten._scaled_dot_product_efficient_attention_backward.default:
        batch, heads, length, head = args[1].shape
        sums = -(-length // 64) * 64 * -(-head // 64) * 64 if args[1].element_size() == 2 else 0
        return batch * heads * (length + sums) * 4
    return 0
