"""The layer as a plain loop over experts: what the checks compare an answer with."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..mixture_of_experts.inputs import Drawn, leaf


def one_loop(given: Drawn) -> dict[str, Tensor]:
    """Return the layer's output for all tokens and the gradients of (output x goal), summed over all tokens."""
    x, weights, up, down = map(leaf, (given.x, given.weights, given.up, given.down))
    y = torch.zeros_like(given.x)
    for expert in range(len(up)):
        share = (weights * (given.chosen == expert)).sum(
            dim=1, keepdim=True
        )  # (n, 1), 0 for tokens that did not choose it
        y = y + share * (F.gelu(x @ up[expert].T) @ down[expert].T)
    (y * given.goal).sum().backward()
    return {"y": y.detach(), "x": x.grad, "weights": weights.grad, "up": up.grad, "down": down.grad}
