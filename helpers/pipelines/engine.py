"""One rank of a pipeline: it runs a list of actions on its stages, sends to its neighbors, and keeps a log.

Activations travel from stage to stage, their gradients travel back. A message is sent without waiting and received
where it is needed; its tag says what is in it, so messages may overtake each other. (Gloo has tags. NCCL does not:
there both sides must send and receive in the same order, and PyTorch's own schedules post such messages in pairs.)
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from .action import Action
from .placement import Placement, rank_of, stage_count
from .timeline import Entry
from .two_parts import weights_later

Pace = Callable[[str, int], float]  # (kind, stage) -> seconds that such an action takes at least


class Engine:
    """A rank with its stages.

    Attributes:
        chunks: the modules of this rank's stages, in the order of `placement[rank]`.
        placement: which rank keeps which stage.
        pace: with it, each action waits until its time is up: computing is negligible then, and no core is needed.
        peers: this pipeline's ranks, where there are several pipelines; by default all.
        log: what this rank did in the last step.
        sent: how many messages it has sent in it.
    """

    def __init__(
        self,
        chunks: Sequence[nn.Module],
        placement: Placement,
        pace: Pace | None = None,
        peers: Sequence[int] | None = None,
    ) -> None:
        self.chunks, self.placement = chunks, placement
        self.pace = pace or (lambda kind, stage: 0.0)
        self.peers = list(peers or range(dist.get_world_size()))
        self.rank, self.last = self.peers.index(dist.get_rank()), stage_count(placement) - 1

    def step(self, schedule: Iterable[Any], x: Sequence[Tensor], y: Sequence[Tensor]) -> float:
        """Run the actions of `schedule`; gradients are added up in the parameters.

        Args:
            schedule: this rank's list of actions.
            x, y: inputs and targets of each micro-batch. The first stage reads x, the last one y.

        Returns:
            The mean loss on the rank with the last stage, else 0.
        """
        self.x, self.y, self.loss = x, y, 0.0
        self.log: list[Entry] = []
        self._sending: list[tuple[dist.Work, Tensor]] = []
        self._local: dict[int, Tensor] = {}  # messages from one stage of this rank to another, by their tags
        self._kept: dict[tuple[int, int], Any] = {}  # (micro-batch, stage) -> what its next action needs
        actions = {"F": self._forward, "B": self._backward, "I": self._input_gradient, "W": self._weight_gradients}
        for kind, micro_batch, chunk in map(Action.of, schedule):
            actions[kind](micro_batch, self.placement[self.rank][chunk], self.chunks[chunk])
        for message, _ in self._sending:
            message.wait()
        self.sent = len(self._sending)
        return self.loss

    def _forward(self, i: int, stage: int, module: nn.Module) -> None:
        x = self.x[i] if stage == 0 else self._receive("F", i, stage - 1, stage).requires_grad_()
        with self._written_down("F", i, stage):
            y = module(x)
            if stage == self.last:
                y = F.mse_loss(y, self.y[i]) / len(self.y)  # gradient accumulation: means of equal parts
                self.loss += y.item()
        self._kept[i, stage] = x, y
        if stage < self.last:
            self._send("F", i, stage, stage + 1, y.detach())

    def _backward(self, i: int, stage: int, module: nn.Module) -> None:
        gradient = None if stage == self.last else self._receive("B", i, stage + 1, stage)
        x, y = self._kept.pop((i, stage))
        with self._written_down("B", i, stage):
            y.backward(gradient)
        if stage > 0:
            self._send("B", i, stage, stage - 1, x.grad)

    def _input_gradient(self, i: int, stage: int, module: nn.Module) -> None:
        gradient = None if stage == self.last else self._receive("B", i, stage + 1, stage)
        x, y = self._kept.pop((i, stage))
        with self._written_down("I", i, stage), weights_later() as backlog:
            y.backward(gradient)
        self._kept[i, stage] = backlog
        if stage > 0:
            self._send("B", i, stage, stage - 1, x.grad)

    def _weight_gradients(self, i: int, stage: int, module: nn.Module) -> None:
        with self._written_down("W", i, stage):
            for layer, x, dy in self._kept.pop((i, stage)):
                layer.add_weight_gradients(x, dy)

    @contextlib.contextmanager
    def _written_down(self, kind: str, i: int, stage: int) -> Iterator[None]:
        """Note in the log when the action began and ended; keep to its pace."""
        start = time.perf_counter()
        yield
        time.sleep(max(0.0, start + self.pace(kind, stage) - time.perf_counter()))
        self.log.append(Entry(kind, i, stage, start, time.perf_counter()))

    def _tag(self, kind: str, i: int, source: int) -> int:
        return ("FB".index(kind) * len(self.x) + i) * (self.last + 1) + source

    def _send(self, kind: str, i: int, source: int, target: int, tensor: Tensor) -> None:
        to, tag = rank_of(self.placement, target), self._tag(kind, i, source)
        if to == self.rank:
            self._local[tag] = tensor
        else:  # the tensor is kept until it has been sent
            self._sending.append((dist.isend(tensor, self.peers[to], tag=tag), tensor))

    def _receive(self, kind: str, i: int, source: int, target: int) -> Tensor:
        of, tag = rank_of(self.placement, source), self._tag(kind, i, source)
        if of == self.rank:
            return self._local.pop(tag)
        buffer = torch.empty_like(self.x[i])
        dist.recv(buffer, self.peers[of], tag=tag)
        return buffer
