"""A mixture's experts as linear layers, each of which gets equally many tokens.

transformers 5 keeps the weights of all experts of a block in two tensors, which neither bitsandbytes nor PEFT takes for
linear layers; in transformers 4 each expert had layers of its own. Which tokens an expert gets depends on their values,
which fake tensors do not have.
"""

import torch
from torch import Tensor, nn

from ..config import RecipeError

_STACKED = {"gate_up_proj", "down_proj"}


class _Expert(nn.Module):
    """A gated perceptron."""

    def __init__(self, stacked: nn.Module) -> None:
        super().__init__()
        inner, outer = stacked.down_proj.shape[2], stacked.down_proj.shape[1]
        like = {"bias": False, "dtype": stacked.down_proj.dtype, "device": stacked.down_proj.device}
        self.gate_proj, self.up_proj = nn.Linear(outer, inner, **like), nn.Linear(outer, inner, **like)
        self.down_proj = nn.Linear(inner, outer, **like)
        self.act_fn = stacked.act_fn

    def forward(self, x: Tensor) -> Tensor:
        """Map (tokens, hidden) to the same shape."""
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class EvenExperts(nn.ModuleList):
    """The experts of a block, one after the other, as transformers' eager loop runs them.

    Args:
        stacked: the module of transformers to stand for, with the weights of all experts in (experts, out, in).
    """

    def __init__(self, stacked: nn.Module) -> None:
        super().__init__(_Expert(stacked) for _ in range(len(stacked.down_proj)))

    def forward(self, x: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Map (tokens, hidden) to the same shape; `top_k_index` and `top_k_weights` are (tokens, experts per token)."""
        out, each = torch.zeros_like(x), -(-top_k_index.numel() // len(self))
        tokens, place = top_k_index.flatten()[:each] % len(x), 0
        for expert in self:
            y = expert(x[tokens]) * top_k_weights[tokens, place, None]
            out.index_add_(0, tokens, y.to(out.dtype))
        return out


def spread_experts(model: nn.Module, name: str) -> None:
    """Give the experts of `model`, which is on the meta device, linear layers of their own.

    Raises:
        RecipeError: its experts, of the model called `name`, have more than two matrices each, or hold them otherwise.
    """
    spread = 0
    for module in list(model.modules()):
        for child_name, child in list(module.named_children()):
            held = dict(child.named_parameters(recurse=False))
            if set(held) == _STACKED and _of_linear_layers(child):
                setattr(module, child_name, EvenExperts(child))
                spread += 1
    if not spread:
        raise RecipeError(f"{name} is a mixture of experts whose weights are not planned in 4 or 8 bits.")


def _of_linear_layers(stacked: nn.Module) -> bool:
    up, down = stacked.gate_up_proj.shape, stacked.down_proj.shape
    return len(up) == len(down) == 3 and up == (down[0], 2 * down[2], down[1]) and hasattr(stacked, "act_fn")
