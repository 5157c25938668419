"""Stand-ins with the sizes of bitsandbytes: frozen linear layers in 4 or 8 bits.

They hold and use as many bytes as the real ones, but compute nothing. So the planner needs neither the package nor a
GPU.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BLOCK_4BIT = 64  # weights that share a scale in NF4
LINEAR = ("Linear", "Conv1D", "FalconLinear")  # transformers 5 leaves the last as it is, so that nothing is quantized
BLOCK_SCALES = 256  # scales that share a scale when they are quantized once more


class _FrozenProduct(torch.autograd.Function):
    """x @ W.T for a weight that is unpacked only for the product, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: "QuantizedLinear", bias: Tensor | None) -> Tensor:
        ctx.layer = layer
        if layer.keeps_inputs:  # although a frozen weight does not need it; a checkpointed block does not
            ctx.save_for_backward(x)
        return F.linear(x, layer.unpacked(x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient @ ctx.layer.unpacked(gradient.dtype), None, None


class QuantizedLinear(nn.Linear):
    """A frozen linear layer in "nf4", "nf4-dq" (scales quantized as well) or "int8".

    Args:
        layer: the layer to stand for.
        kind: how its weight is kept.
        keeps_inputs: for the backward pass, as bitsandbytes does in 8 bits, and before 0.43.2 did in 4 bits, too.
    """

    def __init__(self, layer: nn.Linear, kind: str, keeps_inputs: bool = False) -> None:
        nn.Module.__init__(self)
        turned = not isinstance(layer, nn.Linear)  # GPT-2's Conv1D is a linear layer with its weight transposed
        self.in_features = layer.nx if turned else layer.in_features
        self.out_features = layer.nf if turned else layer.out_features
        self.bits = 8 if kind == "int8" else 4
        self.keeps_inputs = keeps_inputs or self.bits == 8
        n, device, self.dtype = layer.weight.numel(), layer.weight.device, layer.weight.dtype
        self.weight = nn.Parameter(torch.empty(n * self.bits // 8, dtype=torch.uint8, device=device), False)
        self.weight.numbers = n  # type: ignore[attr-defined]  # packed, two of 4 bits are one element
        scales = n // BLOCK_4BIT
        sizes = {
            "nf4": [(scales, torch.float32), (16, torch.float32)],
            "nf4-dq": [
                (scales, torch.uint8),
                (-(-scales // BLOCK_SCALES), torch.float32),
                (16 + 256 + 1, torch.float32),  # the two code books and the offset
            ],
            "int8": [(self.out_features, torch.float32)],
        }[kind]
        for i, (size, dtype) in enumerate(sizes):
            self.register_buffer(f"scale_{i}", torch.empty(size, dtype=dtype, device=device), persistent=False)
        self.bias = layer.bias

    @property
    def W_q(self) -> Tensor:
        """The packed weight. By this name PEFT, for DoRA, knows a layer that unpacks itself."""
        return self.weight

    def dequantize(self) -> Tensor:
        """Return the weight as it was, (out_features, in_features)."""
        return self.unpacked(self.dtype)

    def unpacked(self, dtype: torch.dtype) -> Tensor:
        """Return the weight in `dtype`, (out_features, in_features)."""
        out = torch.empty(self.out_features, self.in_features, dtype=dtype, device=self.weight.device)
        out.view(-1, 8 // self.bits).copy_(self.weight[:, None])  # reads the packed weight, writes the other
        return out

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in_features) to (..., out_features)."""
        if torch.is_autocast_enabled("cpu"):
            x = x.to(torch.get_autocast_dtype("cpu"))
        return _FrozenProduct.apply(x, self, self.bias)


def quantize_linears(model: nn.Module, kind: str, keeps_inputs: bool = False) -> int:
    """Replace linear layers of `model` as `BitsAndBytesConfig` does; returns how many.

    The output head stays as it is, and what transformers wants to keep in FP32, such as T5's `wo`.
    """
    replaced, kept = 0, getattr(model, "_keep_in_fp32_modules", None) or ()
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child).__name__ in LINEAR and child is not head and name not in kept:
                setattr(module, name, QuantizedLinear(child, kind, keeps_inputs))
                replaced += 1
    return replaced
