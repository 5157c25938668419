"""The memory of ZeRO-1 and ZeRO-2: each rank has the whole model, and updates a part of its parameters."""

import heapq
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from ..config import REDUCE_BUCKET
from .strategy import Strategy


class Zero1(Strategy):
    """ZeRO-1: each rank keeps the optimizer state of a part of the parameters, and updates that part.

    With FP32 masters beside 16-bit weights it is DeepSpeed's, which reduces gradients in a buffer of its own.
    """

    shards_state = True

    def own(self, trained: list[Tensor]) -> list[Tensor]:
        """Return the part of the fullest rank."""
        return fullest_partition(trained, self.recipe.ranks)

    @contextmanager
    def backward_pass(self) -> Iterator[None]:
        """Hold DeepSpeed's buffer, whose size does not depend on the model's."""
        buffer = torch.empty(REDUCE_BUCKET, dtype=self.recipe.weight_dtype) if self.recipe.master_weights else None
        yield
        del buffer


class Zero2(Zero1):
    """ZeRO-2: a rank also keeps only the gradients that it updates with."""

    shards_gradients = True

    def buckets(self, trained: Sequence[Tensor]) -> list[Tensor]:
        """Return none: gradients are reduced as they come."""
        return []

    def hook_gradients(self, trained: list[Tensor], own: list[Tensor]) -> None:
        """Free each gradient of another rank's part as soon as it would have been reduced."""
        own_ids = {id(p) for p in own}

        def drop(parameter: Tensor) -> None:
            parameter.grad = None

        for parameter in trained:
            if id(parameter) not in own_ids:
                parameter.register_post_accumulate_grad_hook(drop)

    def bytes_sent(self, parameter_bytes: int, trained_bytes: int) -> int:
        """Return the bytes sent: gradients are reduced after each micro-batch, parameters move once."""
        return self.ring(self.recipe.gradient_accumulation_steps + 1, trained_bytes)


def fullest_partition(parameters: Sequence[Tensor], ranks: int) -> list[Tensor]:
    """Return the parameters whose state the fullest rank keeps, dealt as `ZeroRedundancyOptimizer` deals them.

    The largest parameter goes first, each to the rank that has least.
    """
    hands: list[tuple[int, int, list[Tensor]]] = [(0, rank, []) for rank in range(ranks)]
    for parameter in sorted(parameters, key=lambda p: -p.numel()):
        elements, rank, hand = heapq.heappop(hands)
        heapq.heappush(hands, (elements + parameter.numel(), rank, [*hand, parameter]))
    fullest = {id(parameter) for parameter in max(hands)[2]}
    return [parameter for parameter in parameters if id(parameter) in fullest]
