"""Practice check of the first lab: count the bytes of a model's parameters."""

from collections.abc import Callable

from torch import nn

from ..core.models import SmallCNN, SmallGPT
from .base import Check, Evidence, Part


class CountsEveryParameterOnce(Check):
    """The bytes of all parameters: in any dtype, frozen or not, shared ones once."""

    hint = (
        "model.parameters() gives each parameter once; numel() counts its elements, element_size() the bytes of one. "
        "Buffers, such as BatchNorm's running statistics, are not parameters."
    )

    @staticmethod
    def probe(seed: int, parameter_bytes: Callable[[nn.Module], int]) -> Evidence:
        frozen = SmallCNN(8)
        frozen.features.requires_grad_(False)
        models = {
            "a linear layer": nn.Linear(100, 10),
            "a CNN with frozen layers": frozen,
            "a layer in BF16": nn.Linear(64, 64).bfloat16(),
            "a GPT whose output layer shares the embedding's weight": SmallGPT(layers=1, width=64),
            "a ReLU, which has none": nn.ReLU(),
        }
        return {name: float(parameter_bytes(model)) for name, model in models.items()}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name, want in expected.items():
            if seen[name] != want:
                ratio = f", {seen[name] / want:.3g} times" if want else " instead of"
                return (
                    f"For {name} you counted {seen[name]:,.6g} bytes{ratio} the {want:,.0f} that its parameters hold."
                )
        return None


PARTS = (Part("start_here.bytes", ("parameter_bytes",), (CountsEveryParameterOnce,)),)
