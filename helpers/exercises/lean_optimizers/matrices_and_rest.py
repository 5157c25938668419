"""One optimizer out of two: matrices go to the first, all other parameters to the second.

Muon makes the directions of a matrix equal in size. A bias or a norm has no directions, so AdamW takes those.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

MakeOptimizer = Callable[[list[Tensor]], torch.optim.Optimizer]


class MatricesAndRest(torch.optim.Optimizer):
    """Steps both optimizers. A schedule sees the parameter groups of both, and the meter the state of both.

    Args:
        parameters: of a model; an optimizer that would get none of them is not made.
        for_matrices: makes the optimizer of the parameters with two dimensions.
        for_rest: makes the optimizer of all others.
    """

    def __init__(self, parameters: Iterable[Tensor], for_matrices: MakeOptimizer, for_rest: MakeOptimizer) -> None:
        parameters = list(parameters)
        super().__init__(parameters, {})
        matrices = [p for p in parameters if p.dim() == 2]
        rest = [p for p in parameters if p.dim() != 2]
        self.parts = [make(ps) for make, ps in ((for_matrices, matrices), (for_rest, rest)) if ps]
        self.param_groups = [group for part in self.parts for group in part.param_groups]  # the same dictionaries

    def step(self, closure: None = None) -> None:
        for part in self.parts:
            part.step()
            self.state.update(part.state)  # the same tensors
