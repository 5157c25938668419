"""Watch a model's forward passes, whether an answer calls `model(x)` or `model.forward(x)`.

PyTorch's hooks see the first alone.
"""

from collections.abc import Callable
from typing import Any

from torch import nn

Given = tuple[Any, ...]


def on_forward(
    model: nn.Module,
    before: Callable[[nn.Module, Given], Given | None] = lambda model, args: None,
    after: Callable[[nn.Module, Given, Any], Any] = lambda model, args, output: None,
) -> None:
    """Have each forward pass of `model`, and of its copies, begin with `before` and end with `after`.

    Args:
        before: gets the model and its arguments; what it returns takes their place, unless it is None.
        after: gets the output as well; what it returns takes the output's place, unless it is None.
    """
    kind: Any = type(model)

    class Watched(kind):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            changed = before(self, args)
            args = args if changed is None else changed
            output = super().forward(*args, **kwargs)
            other = after(self, args, output)
            return output if other is None else other

    Watched.__name__ = kind.__name__
    model.__class__ = Watched
