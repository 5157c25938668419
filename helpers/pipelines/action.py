"""Actions: what a rank of a pipeline does, one after the other.

An action is a tuple: what, which micro-batch, and of which of the rank's chunks. `("F", 3)` is the forward pass of
micro-batch 3, `("B", 3)` its backward pass. `("I", 3)` and `("W", 3)` are the two halves of the backward pass: the
gradient of the stage's input, and those of its weights. A rank with more than one stage says which of them it means:
`("F", 3, 1)` belongs to its chunk 1. The letters are PyTorch's.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

KINDS = "FBIW"


class Action(NamedTuple):
    """One action, with its chunk.

    Attributes:
        kind: a letter: F, B, I or W.
        micro_batch: counted from 0.
        chunk: which of the rank's stages, counted from 0.
    """

    kind: str
    micro_batch: int
    chunk: int = 0

    @classmethod
    def of(cls, action: Iterable[Any]) -> "Action":
        """Return `action`, a tuple of two or three, as an `Action`.

        Raises:
            ValueError: it is no action.
        """
        entry = cls(*action) if not isinstance(action, str) else cls(action, -1)
        if entry.kind not in tuple(KINDS) or entry.micro_batch < 0 or entry.chunk < 0:
            raise ValueError(f"{action!r} is not an action: give one of {', '.join(KINDS)}, and a micro-batch.")
        return entry

    def __str__(self) -> str:
        return f"{self.kind}{self.micro_batch}" + (f".{self.chunk}" if self.chunk else "")


def in_flight(schedule: Iterable[Iterable[Any]]) -> int:
    """Return how many micro-batches, each chunk's counted, a rank holds at most: from F until B, or until W."""
    held: set[tuple[int, int]] = set()
    most = 0
    for kind, micro_batch, chunk in map(Action.of, schedule):
        if kind == "F":
            held.add((micro_batch, chunk))
        elif kind in "BW":
            held.discard((micro_batch, chunk))
        most = max(most, len(held))
    return most
