"""One stage of a pipeline on its rank, before there are lists of actions: what it has, and what it must remember."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn


@dataclass
class Stage:
    """The stage of this rank.

    Attributes:
        module: its part of the model.
        number: of the stage, and so of the rank; the first is 0.
        count: of all stages.
        x, y: inputs and targets, a tensor for each micro-batch. Every rank has all of them.
        kept: by micro-batch, what its backward pass needs.
        sending: messages on their way, each with its tensor, which must stay as it is until the message has arrived.
    """

    module: nn.Module
    number: int
    count: int
    x: Sequence[Tensor]
    y: Sequence[Tensor]
    kept: dict[int, Any] = field(default_factory=dict)
    sending: list[tuple[dist.Work, Tensor]] = field(default_factory=list)

    def finish(self) -> None:
        """Wait until all messages have arrived; over gloo, a second wait for the same message would never end."""
        for message, _ in self.sending:
            if not message.is_completed():
                message.wait()
        self.sending.clear()
