"""Check of a stage's two passes across processes: what they receive, compute, send and keep, and what they wait for."""

import copy
import gc
import tempfile
import time
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ...pipelines.stage import Stage
from ...ranks.collectives import Collectives
from ..base import Check, Evidence
from ..probing.cases import cases_on_ranks
from ..probing.on_ranks import on_ranks

Pass = Callable[[Stage, int], Any]
WIDTH, ROWS = 3, (2, 1, 3, 2)  # of the micro-batches
CASES = {
    1: {"2 micro-batches": (2, "all forward first")},
    2: {"3 micro-batches, all forward first": (3, "all forward first")},
    3: {"4 micro-batches, one forward, one backward": (4, "alternating")},
}
EXACT = 1e-9  # in double precision
PATIENCE = 8.0  # seconds that a neighbor waits: a pass that waits for its receiver does not end before that


def _parts(seed: int, count: int, m: int) -> tuple[list[nn.Module], list[Tensor], list[Tensor]]:
    """Return the stages, and inputs and targets of the micro-batches; the same on every rank."""
    torch.manual_seed(seed)
    modules = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)) for _ in range(count)]
    x, y = (torch.randn(sum(ROWS[:m]), WIDTH, dtype=torch.float64).split(ROWS[:m]) for _ in range(2))
    return [module.double() for module in modules], list(x), list(y)


def _order(rank: int, count: int, m: int, order: str) -> list[tuple[str, int]]:
    early = m if order == "all forward first" else min(count - rank - 1, m)
    actions = [("F", i) for i in range(early)]
    for i in range(m - early):
        actions += [("F", early + i), ("B", i)]
    return actions + [("B", i) for i in range(m - early, m)]


def _gradients(module: nn.Module) -> Tensor:
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in module.parameters()])


class _Seen:
    """Records a module's inputs and outputs without keeping them alive."""

    def __init__(self, module: nn.Module, first: bool) -> None:
        self.first, self.tensors, self.calls = first, [], 0
        module.register_forward_hook(self._note)

    def _note(self, module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
        self.calls += 1
        self.tensors.append([weakref.ref(tensor) for tensor in ((out,) if self.first else (args[0], out))])

    def alive(self, i: int) -> int:
        """Return how many of the i-th pass's tensors are still kept."""
        gc.collect()
        return sum(ref() is not None for ref in self.tensors[i]) if i < len(self.tensors) else 0


def _run_backward(backward: Pass, stage: Stage, i: int) -> None:
    """Run a backward pass; an error about a gradient that is None says why it is."""
    try:
        backward(stage, i)
    except (AttributeError, TypeError) as error:
        if "NoneType" in str(error):
            error.args = (f"{error}. If it is a gradient: autograd gives none to a tensor that does not require one.",)
        raise


def _work(forward: Pass, backward: Pass, seed: int, case: tuple[int, str]) -> Evidence:
    """One rank: its actions, and how its stage's gradients compare with those of one process."""
    (m, order), rank, count = case, dist.get_rank(), dist.get_world_size()
    modules, x, y = _parts(seed, count, m)
    whole = copy.deepcopy(modules)
    right = [F.mse_loss(nn.Sequential(*whole)(xs), ys) / m for xs, ys in zip(x, y, strict=True)]
    sum(right).backward()
    stage = Stage(modules[rank], rank, count, x, y)
    noted, losses, attached, alive = _Seen(stage.module, rank == 0), [], [], []
    with Collectives() as said:
        for kind, i in _order(rank, count, m, order):
            if kind == "F":
                loss = forward(stage, i)
                losses.append(None if loss is None else float(loss))
                attached.append(isinstance(loss, Tensor) and loss.requires_grad)
                del loss
            else:
                _run_backward(backward, stage, i)
                alive.append(noted.alive(i))
        stage.finish()
    mine, theirs = _gradients(stage.module), _gradients(whole[rank])
    return {
        "losses": losses,
        "attached": attached,
        "right": [loss.item() for loss in right] if rank == count - 1 else [None] * m,
        "off": ((mine - theirs).norm() / theirs.norm()).item(),
        "length": (mine.norm() / theirs.norm()).item(),
        "calls": dict(Counter(call.name for call in said.calls)),
        "passes": noted.calls,
        "alive": alive,
    }


def observe(seed: int, forward: Pass, backward: Pass) -> Evidence:
    """Return what each rank saw, by case."""
    return cases_on_ranks(_work, CASES, forward, backward, seed)


class _OfRanks(Check):
    """Judges rank by rank, in the order of the cases."""

    probe = staticmethod(observe)

    @classmethod
    def judge(cls, seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            for rank, (got, right) in enumerate(zip(seen[case], want, strict=True)):
                if wrong := cls.wrong(got, right):
                    return f"{case}, rank {rank}: {wrong}"
        return None

    @classmethod
    def wrong(cls, got: Evidence, right: Evidence) -> str | None:
        """Return what is wrong on one rank, None if nothing is."""
        raise NotImplementedError


class LossOnTheLastRank(_OfRanks):
    """`run_forward` returns the micro-batch's share of the loss on the last rank, and None on all others."""

    hint = (
        "The last stage has no next rank: what does it do with its output instead of sending it?\n"
        "m micro-batches give m losses, and the step's loss is their mean."
    )

    @classmethod
    def wrong(cls, got: Evidence, right: Evidence) -> str | None:
        for number, (mine, theirs) in enumerate(zip(got["losses"], right["right"], strict=True)):
            if (mine is None) != (theirs is None):
                returned, wanted = ("None", "its loss") if mine is None else ("a number", "None")
                return f"run_forward returned {returned} in call {number}; on this rank it should return {wanted}."
            if mine is not None and not abs(mine - theirs) <= EXACT * abs(theirs):
                return (
                    f"run_forward returned {mine:.6g} in call {number}; its share of the loss is {theirs:.6g}. "
                    "By what is the micro-batch's loss divided?"
                )
            if got["attached"][number]:
                return f"run_forward returned a loss with its graph in call {number}; the loss should be detached."
        return None


class GradientsOfOneProcess(_OfRanks):
    """After the step each stage has the gradients that one process computes for its layers."""

    hint = (
        "Autograd does not reach across processes. A received tensor is a new leaf: what must you set before the "
        "forward pass, so that it gets a gradient?\n"
        "y.backward(dy) continues from a known gradient dy. Where does dy come from?\n"
        "Several micro-batches are in flight at once: keep each one's tensors under its number."
    )

    @classmethod
    def wrong(cls, got: Evidence, right: Evidence) -> str | None:
        if got["off"] <= EXACT:
            return None
        return (
            f"the gradients of this stage differ from those of one process by {got['off']:.2g} (relative); their norm "
            f"is {got['length']:.3g} times as large. Is each loss divided by m, and with which gradient does "
            "backward() start?"
        )


class OneMessagePerNeighbor(_OfRanks):
    """A pass receives at most one tensor from one neighbor and sends at most one to the other; nothing else is sent."""

    hint = (
        "Forward: from the rank before, to the next one. Backward: the other way around.\n"
        "The first and the last rank have one neighbor. Which of the four messages do they not have?"
    )

    @classmethod
    def wrong(cls, got: Evidence, right: Evidence) -> str | None:
        if got["calls"] == right["calls"]:
            return None
        return (
            f"this rank's calls were {_words(got['calls'])}; they should be {_words(right['calls'])}. "
            "Which neighbors does this rank have, and what does each pass exchange with them?"
        )


def _words(calls: dict[str, int]) -> str:
    return ", ".join(f"{n} x {name}" for name, n in sorted(calls.items())) or "none"


class ComputesOnce(_OfRanks):
    """The module runs once per micro-batch: the backward pass uses the graph that the forward pass left."""

    hint = "Keep the tensor from which backward() starts, and the input whose gradient you send. Do not recompute them."

    @classmethod
    def wrong(cls, got: Evidence, right: Evidence) -> str | None:
        mine, theirs = got["passes"], right["passes"]
        if mine == theirs:
            return None
        return f"the module ran {mine} times for {theirs} micro-batches. Which pass runs it again?"


class ForgetsAfterBackward(_OfRanks):
    """After a micro-batch's backward pass nothing keeps its input or its output alive."""

    hint = (
        "Take a micro-batch out of `kept` when its backward pass begins.\n"
        "A message should carry values without a graph: detach what you send."
    )

    @classmethod
    def wrong(cls, got: Evidence, right: Evidence) -> str | None:
        left = next((number for number, alive in enumerate(got["alive"]) if alive), None)
        if left is None:
            return None
        return (
            f"after backward pass {left}, its micro-batch's input or output is still alive. Does `kept` or a message "
            "refer to it?"
        )


def _late(forward: Pass, backward: Pass, seed: int, folder: str) -> Evidence:
    """One of two ranks: the receiver waits until the sender's pass has ended, and records whether it did."""
    modules, x, y = _parts(seed, 2, 1)
    rank, ended = dist.get_rank(), {"forward": Path(folder, "forward"), "backward": Path(folder, "backward")}
    stage, seen = Stage(modules[rank], rank, 2, x, y), {}

    def after(name: str) -> None:
        until = time.monotonic() + PATIENCE
        while not ended[name].exists() and time.monotonic() < until:
            time.sleep(0.005)
        seen[name] = ended[name].exists()

    for name, run, sender in (("forward", forward, 0), ("backward", backward, 1)):
        if rank != sender:
            after(name)
        (_run_backward(run, stage, 0) if name == "backward" else run(stage, 0))
        if rank == sender:
            ended[name].touch()
            seen["listed"] = len(stage.sending)
    stage.finish()
    return seen


class SendsWithoutWaiting(Check):
    """A pass ends before its message has been received, and leaves the message with its tensor in `stage.sending`."""

    hint = (
        "dist.send returns when the message has been received. Which function returns at once, and what does it give?\n"
        "Until a message has arrived, something must keep it and its tensor: append both to stage.sending."
    )

    @staticmethod
    def probe(seed: int, forward: Pass, backward: Pass) -> Evidence:
        with tempfile.TemporaryDirectory() as folder:
            return {"ranks": on_ranks(_late, 2, forward, backward, seed, folder)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name, receiver in (("forward", 1), ("backward", 0)):
            if not seen["ranks"][receiver][name]:
                return (
                    f"2 ranks: run_{name} on rank {1 - receiver} had not ended after {PATIENCE:.0f} s, because rank "
                    f"{receiver} had not yet received. Which call waits for the receiver?"
                )
        for rank, (got, right) in enumerate(zip(seen["ranks"], expected["ranks"], strict=True)):
            if got["listed"] != right["listed"]:
                return (
                    f"2 ranks, rank {rank}: after its message was sent, stage.sending has {got['listed']} entries; "
                    f"it should have {right['listed']}, one per message."
                )
        return None


STAGE = (
    LossOnTheLastRank,
    GradientsOfOneProcess,
    OneMessagePerNeighbor,
    ComputesOnce,
    ForgetsAfterBackward,
    SendsWithoutWaiting,
)
