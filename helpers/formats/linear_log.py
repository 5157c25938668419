"""What goes through the linear layers of a model while it trains.

A linear layer computes three products, and three tensors go into them: its input x, its weight w, and g, the gradient
of its output. A number format has to hold all three.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping

from torch import Tensor, nn


class LinearLog:
    """Records the largest magnitude of x, w and g in every step, and keeps the tensors of some steps.

    Attributes:
        amaxes: (layer, kind) -> the largest magnitude of each step; kind is "x", "w" or "g".
        tensors: (step, layer, kind) -> the tensor in FP32 with two dimensions, for the steps in `keep`.
    """

    def __init__(self, keep: Collection[int]) -> None:
        self.keep = keep
        self.amaxes: dict[tuple[str, str], list[float]] = defaultdict(list)
        self.tensors: dict[tuple[int, str, str], Tensor] = {}

    def attach(self, layers: Mapping[str, nn.Linear]) -> None:
        """Record these layers from now on: one forward and one backward pass is a step."""
        for name, layer in layers.items():
            layer.register_forward_hook(self._hook(name))

    def _hook(self, name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def forward_hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            self._record(name, "x", inputs[0])
            self._record(name, "w", module.weight)
            output.register_hook(lambda gradient: self._record(name, "g", gradient))

        return forward_hook

    def _record(self, name: str, kind: str, tensor: Tensor) -> None:
        step = len(self.amaxes[name, kind])
        self.amaxes[name, kind].append(tensor.detach().abs().max().item())
        if step in self.keep:
            self.tensors[step, name, kind] = tensor.detach().flatten(0, -2).float().clone()
