"""One stage of a pipeline on its rank, before there are lists of actions: what it has, and what it must remember."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn


@dataclass
class Stage:
    """This rank's stage.

    Attributes:
        module: the stage's part of the model.
        number: the stage's number, which is also its rank; the first is 0.
        count: the number of stages.
        x, y: inputs and targets, one tensor per micro-batch. Every rank has all of them.
        kept: for each micro-batch, the tensors that its backward pass needs.
        sending: messages on their way, each with its tensor, which must not change until the message has arrived.
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
