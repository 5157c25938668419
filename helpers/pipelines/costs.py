"""How long an action takes: in ticks, by its kind and its stage."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """Ticks of one micro-batch in one stage.

    A linear layer's forward pass is one matmul, its backward pass two of the same size: one for the gradient of the
    input, one for the gradient of the weights.

    Attributes:
        forward, inputs, weights: of an F, an I and a W. A B is an I and a W.
        stages: how much more each stage has to do, by its number; empty: all stages have the same.
        message: from one rank to another. No rank stops working meanwhile.
    """

    forward: float = 1.0
    inputs: float = 1.0
    weights: float = 1.0
    stages: tuple[float, ...] = ()
    message: float = 0.0

    @classmethod
    def thin(cls, chunks: int, message: float = 0.0) -> "Costs":
        """Return the costs where a stage has been cut in `chunks`; a tick is still a whole stage's forward pass."""
        return cls(1 / chunks, 1 / chunks, 1 / chunks, message=message)

    def of(self, kind: str, stage: int) -> float:
        """Return the ticks of an action of this kind in this stage."""
        backward = self.inputs + self.weights
        ticks = {"F": self.forward, "I": self.inputs, "W": self.weights, "B": backward}[kind]
        return ticks * (self.stages[stage] if self.stages else 1.0)
