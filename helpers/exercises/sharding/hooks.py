"""Check of the hooks around a block: its vector's contents when it computes, its memory between uses, its messages.

Blocks record the state right before they compute, forward and backward. A vector that is not complete by then is
filled for the answer, so that a missing gather is reported and does not crash the rank.
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...ranks.collectives import Collectives
from ..base import Check, Evidence
from ..probing.cases import cases_on_ranks
from ..probing.distance import relative_distance
from .layout import end_to_end, lay_out

AddHooks = Callable[..., Any]
BLOCKS, WIDTH, ROWS = 3, 3, 2
CASES = {2: {"stage 2": 2, "stage 3": 3}, 3: {"stage 3": 3}}
EXACT = 1e-9  # in double precision
PASSES = (
    "micro-batch 1",
    "micro-batch 2",
    "the evaluation pass without gradients",
)  # the input of the first requires no gradient
WORDS = {
    "made": "after the hooks were added",
    "forward_over": "after the forward pass",
    "backward_over": "after the backward pass",
}


class Witness:
    """Records at each moment which vectors have bytes, if the computing block is complete, and what has gradients."""

    def __init__(self, blocks: list[nn.Module], flats: list[Tensor]) -> None:
        self.blocks, self.flats = blocks, flats
        self.right = [flat.clone() for flat in flats]
        self.moments: list[Evidence] = []

    def __call__(self, moment: str, number: int = -1) -> None:
        """Note a moment; `number` is the block that is about to compute, if one is."""
        self.moments.append(
            {
                "moment": moment,
                "block": number,
                "state": self._state(number) if number >= 0 else "",
                "bytes": [flat.untyped_storage().nbytes() for flat in self.flats],
                "grads": [any(p.grad is not None for p in block.parameters()) for block in self.blocks],
                "views": [self._views(i) for i in range(len(self.blocks))],
            }
        )
        if number >= 0:
            self.fill(number)

    def _state(self, number: int) -> str:
        flat = self.flats[number]
        storage = flat.untyped_storage()
        if not self._views(number):
            return "moved"
        if storage.nbytes() < flat.nbytes:
            return "empty"
        return "right" if torch.equal(flat, self.right[number]) else "wrong"

    def _views(self, number: int) -> bool:
        """Return whether a block's parameters are views of its vector, whether or not that has bytes."""
        storage = self.flats[number].untyped_storage()
        return all(p.untyped_storage()._cdata == storage._cdata for p in self.blocks[number].parameters())

    def fill(self, number: int) -> None:
        """Complete a block's vector, whatever state the answer left it in."""
        flat = self.flats[number]
        flat.untyped_storage().resize_(flat.nbytes)
        with torch.no_grad():
            flat.copy_(self.right[number])


class _Noted(torch.autograd.Function):
    """The identity; its backward pass runs first in that of a block."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, witness: Witness, number: int) -> Tensor:
        ctx.noted = witness, number
        return y.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        witness, number = ctx.noted
        witness("backward", number)
        return dy, None, None


class _Block(nn.Module):
    """x + second(tanh(first(x))) in double precision.

    It has its parameters in another order than it uses them, so that neither the first nor the last of them gets its
    gradient last.
    """

    witness: Witness | None = None

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.second, self.first = nn.Linear(WIDTH + 1, WIDTH).double(), nn.Linear(WIDTH, WIDTH + 1).double()

    def forward(self, x: Tensor) -> Tensor:
        if self.witness is not None:
            self.witness("forward", self.number)
        y = x + self.second(torch.tanh(self.first(x)))
        return y if self.witness is None else _Noted.apply(y, self.witness, self.number)


def _rows(seed: int, number: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + 10 * number + rank)
    return torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64)


def _right_gradients(blocks: list[nn.Module], seed: int, n: int) -> list[list[Tensor]]:
    """Return after each of the two micro-batches, by block, the mean of all ranks' gradients, laid out and padded."""
    found = []
    for number in range(2):
        for rank in range(n):
            (nn.Sequential(*blocks)(_rows(seed, number, rank)).square().mean() / n).backward()
        found.append([end_to_end([p.grad for p in block.parameters()], n) for block in blocks])
    return found


def _work(add_hooks: AddHooks, seed: int, stage: int) -> Evidence:
    """One rank: hooks for each block, two micro-batches, a step on the shards, and a pass without gradients."""
    rank, n = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(seed)
    blocks = [_Block(number) for number in range(BLOCKS)]
    right = _right_gradients(copy.deepcopy(blocks), seed, n)
    laid_out = [lay_out(list(block.parameters()), rank, n) for block in blocks]
    flats = [flat for flat, _ in laid_out]
    shards = [nn.Parameter(mine.clone() if stage == 3 else mine) for _, mine in laid_out]
    witness = Witness(blocks, flats)
    for block, flat, shard in zip(blocks, flats, shards, strict=True):
        add_hooks(block, flat, shard, stage)
        block.witness = witness
    witness("made")
    seen: Evidence = {"calls": {}, "grads": [], "right": [[g.chunk(n)[rank].tolist() for g in gs] for gs in right]}
    for number, name in enumerate(PASSES[:2]):
        x = _rows(seed, number, rank).requires_grad_(number > 0)
        with Collectives() as said:
            out = nn.Sequential(*blocks)(x)
            witness("forward_over")
            out.square().mean().backward()
            witness("backward_over")
        seen["calls"][name] = [list(call) for call in said.calls]
        seen["grads"].append([None if shard.grad is None else shard.grad.flatten().tolist() for shard in shards])
    _step(witness, shards, stage)
    for block in blocks:
        block.eval()
    with Collectives() as said, torch.no_grad():
        nn.Sequential(*blocks)(x)
        witness("forward_over")
    seen["calls"][PASSES[2]] = [list(call) for call in said.calls]
    return seen | {"moments": witness.moments, "full": [flat.nbytes for flat in flats]}


def _step(witness: Witness, shards: list[nn.Parameter], stage: int) -> None:
    """Halve all numbers, as if that were a step."""
    for number, (shard, right) in enumerate(zip(shards, witness.right, strict=True)):
        right /= 2
        if stage == 3:
            shard.data.copy_(right.chunk(dist.get_world_size())[dist.get_rank()])
        else:  # the loop gathers after a step
            witness.fill(number)


def observe(seed: int, add_hooks: AddHooks) -> Evidence:
    """Return what each rank saw, by case."""
    return cases_on_ranks(_work, CASES, add_hooks, seed)


class _OfRanks(Check):
    """Judges rank by rank, in the order of the cases."""

    probe = staticmethod(observe)

    @classmethod
    def judge(cls, seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            for rank, (got, right) in enumerate(zip(seen[case], want, strict=True)):
                if wrong := cls.wrong(got, right, case.endswith("3")):
                    return f"{case}, rank {rank}: {wrong}"
        return None

    @classmethod
    def wrong(cls, got: Evidence, right: Evidence, stage_3: bool) -> str | None:
        """Return what is wrong on one rank, None if nothing is."""
        raise NotImplementedError


def _incomplete(got: Evidence, moment: str) -> str | None:
    """Say which block is the first that is not complete when it computes in this direction."""
    states = {
        "empty": "its vector has no bytes. Which hook gathers it?",
        "moved": "its parameters are no longer views of `flat`. Was `flat` replaced rather than resized?",
        "wrong": "its vector does not hold the values of all ranks' shards. Which hook gathers it, and when?",
    }
    for noted in got["moments"]:
        if noted["moment"] == moment and noted["state"] != "right":
            first = f"when block {noted['block']} (of 0 to {BLOCKS - 1}) computes in a {moment} pass"
            if moment == "backward" and noted["block"] == 0 and noted["state"] == "empty":
                # The blocks before it in this pass were complete, so their hooks gather. Its input needs no gradient.
                return (
                    f"{first}, its vector has no bytes; those of the other blocks were complete. Which hook frees it, "
                    "and when is that hook called if the block's input needs no gradient?"
                )
            return f"{first}, {states[noted['state']]}"
        if noted["moment"] in ("made", f"{moment}_over") and not all(noted["views"]):
            when, block = WORDS[noted["moment"]], noted["views"].index(False)
            return (
                f"{when}, the parameters of block {block} are not views of `flat`. Resize its storage, and leave the "
                "parameters as they are."
            )
    return None


class CompleteInForward(_OfRanks):
    """When a block's forward pass begins, its vector holds the current values of all ranks' shards."""

    hint = (
        "At stage 3 the vector is empty before each forward pass. Which hook runs right before a module's forward?\n"
        "Allocate the bytes first, then gather. At stage 2 nothing is ever freed."
    )

    @classmethod
    def wrong(cls, got: Evidence, right: Evidence, stage_3: bool) -> str | None:
        return _incomplete(got, "forward")


class CompleteInBackward(_OfRanks):
    """When a block's backward pass begins, its vector holds the current values of all ranks' shards."""

    hint = (
        "The forward pass has freed the vector, and the backward pass multiplies by the weights again.\n"
        "Which hook runs when the gradient of the block's output is known and nothing has been computed from it yet?"
    )

    @classmethod
    def wrong(cls, got: Evidence, right: Evidence, stage_3: bool) -> str | None:
        return _incomplete(got, "backward")


def _moments(got: Evidence) -> Iterator[tuple[str, Evidence, list[int]]]:
    """Yield (when, what was noted, the other blocks whose vectors had bytes), in order."""
    for noted in got["moments"]:
        full = [number for number, nbytes in enumerate(noted["bytes"]) if nbytes and number != noted["block"]]
        at = noted["moment"]
        yield WORDS.get(at, f"when block {noted['block']} computes {at}"), noted, full


class FreedAfterForward(_OfRanks):
    """At stage 3 a block's vector has no bytes before its first use, and none right after each forward pass."""

    hint = (
        "A block's forward pass ends before the next block's begins: which hook runs in between?\n"
        "untyped_storage().resize_(0) keeps the tensor and gives its bytes back."
    )

    @classmethod
    def wrong(cls, got: Evidence, right: Evidence, stage_3: bool) -> str | None:
        for when, noted, full in _moments(got) if stage_3 else ():
            left = [number for number in full if noted["moment"] != "backward_over"]
            if noted["moment"] == "backward":  # of earlier blocks: later ones have been used since
                left = [number for number in left if number < noted["block"]]
            if left:
                return f"{when}, the vectors of blocks {left} have bytes; only a block that is computing may have any."
        return None


class FreedAfterBackward(_OfRanks):
    """At stage 3 a block's vector has no bytes once its backward pass is over and that of the previous block begins."""

    hint = (
        "Once all gradients of a block's parameters exist, its backward pass no longer needs the weights.\n"
        "Free the vector where you reduce."
    )

    @classmethod
    def wrong(cls, got: Evidence, right: Evidence, stage_3: bool) -> str | None:
        for when, noted, full in _moments(got) if stage_3 else ():
            left = full if noted["moment"] == "backward_over" else []
            if noted["moment"] == "backward":
                left = [number for number in full if number > noted["block"]]
            if left:
                return f"{when}, the vectors of blocks {left} still have bytes; their backward pass is over."
        return None


class ReducedAtOnce(_OfRanks):
    """A block's gradients are reduced before the backward pass of the previous block begins, at stages 2 and 3."""

    hint = (
        "register_post_accumulate_grad_hook is called once per parameter, right after its .grad was written. "
        "Which call is the last of a block?\n"
        "A module's full backward hook runs when the gradients of its inputs are known. If no input requires one, it "
        "runs before the gradients of the parameters are computed."
    )

    @classmethod
    def wrong(cls, got: Evidence, right: Evidence, stage_3: bool) -> str | None:
        for when, noted, _ in _moments(got):
            late = noted["grads"]
            if noted["moment"] == "backward":
                late = [has and number > noted["block"] for number, has in enumerate(late)]
            elif noted["moment"] != "backward_over":
                continue
            if any(late):
                return (
                    f"{when}, block {late.index(True)} still has gradients in its parameters' `.grad`. "
                    "Which hook reduces it?"
                )
        return None


class MeanAddsUp(_OfRanks):
    """After each micro-batch a shard's gradient is the mean over the ranks, added to that of earlier micro-batches."""

    hint = (
        "reduce_gradients takes the mean and adds it: leave shard.grad alone, and pass all of the block's parameters.\n"
        "reduce_gradients counts a missing gradient as zeros: call it when all gradients exist."
    )

    @classmethod
    def wrong(cls, got: Evidence, right: Evidence, stage_3: bool) -> str | None:
        for name, mine, theirs in zip(PASSES, got["grads"], right["right"], strict=False):
            for block, (gradient, mean) in enumerate(zip(mine, theirs, strict=True)):
                if gradient is None:
                    return f"after {name} the shard of block {block} has no gradient. Was reduce_gradients called?"
                off = relative_distance(gradient, mean)
                if off > EXACT:
                    return (
                        f"after {name} shard.grad of block {block} differs from the joint mean by {off:.2g} "
                        "(relative). How often is reduce_gradients called, and with which parameters?"
                    )
        return None


class SendsNoMore(_OfRanks):
    """A block sends one reduction per backward pass; at stage 3 also one gather before each pass. Nothing else."""

    hint = (
        "Count the calls of one block: forward, backward, reduction.\n"
        "A hook on every parameter is called once per parameter. Only one of these calls should send."
    )

    @classmethod
    def wrong(cls, got: Evidence, right: Evidence, stage_3: bool) -> str | None:
        for name, calls in right["calls"].items():
            mine, theirs = (Counter(map(tuple, sent)) for sent in (got["calls"][name], calls))
            if mine != theirs:
                return f"in {name}, {BLOCKS} blocks sent {_words(mine)}; they should send {_words(theirs)}."
        return None


def _words(calls: Counter) -> str:
    return ", ".join(f"{n} x {name} of {nbytes} B" for (name, nbytes), n in sorted(calls.items())) or "nothing"


HOOKS = (
    CompleteInForward,
    CompleteInBackward,
    FreedAfterForward,
    FreedAfterBackward,
    ReducedAtOnce,
    MeanAddsUp,
    SendsNoMore,
)
