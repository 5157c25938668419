"""Check of a training step on a sharded model: accumulated micro-batches, one reduction, one joint norm."""

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad_norm_, get_total_norm

from ...ranks.collectives import Collectives
from ..base import Check, Evidence
from ..probing.cases import cases_on_ranks
from ..sharding.blocks import Blocks

Step = Callable[..., Any]
MicroBatches = list[tuple[Tensor, Tensor]]
WIDTH, BLOCKS, STEPS = 16, 3, 2
ROWS = (3, 2, 1)  # of a rank's micro-batches
NEAR = "a limit a little below"  # the norm, of which it is this share
SHARE = 0.8
CASES = {2: {"a limit far above": 1000.0, "a limit below": 0.01, NEAR: SHARE}, 3: {"a limit below": 0.01}}
CLOSE = 1e-3


def _micro_batches(seed: int, step: int, rank: int) -> MicroBatches:
    generator = torch.Generator().manual_seed(1000 * seed + 10 * step + rank)
    x, y = torch.randn(2, sum(ROWS), WIDTH, generator=generator) * (1 + rank)
    return list(zip(x.split(ROWS), y.split(ROWS), strict=True))


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def _weights(model: nn.Module) -> Tensor:
    full = (p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters())
    return torch.cat([p.detach().flatten() for p in full])


def _one_process(model: nn.Module, seed: int, limit: float) -> list[tuple[float, float, Tensor, float]]:
    """Train on the joint batch at once; return for each step this rank's loss, the norm, the weights, and the limit."""
    optimizer, found = _sgd(model), []
    for step in range(STEPS):
        ranks = [_micro_batches(seed, step, rank) for rank in range(dist.get_world_size())]
        parts = [[torch.cat(tensors) for tensors in zip(*pairs, strict=True)] for pairs in ranks]
        losses = [F.mse_loss(model(x), y) for x, y in parts]
        (sum(losses) / len(losses)).backward()
        norm = get_total_norm([p.grad for p in model.parameters()]).item()
        most = limit * norm if limit == SHARE else limit
        clip_grad_norm_(model.parameters(), most)
        optimizer.step()
        optimizer.zero_grad()
        found.append((losses[dist.get_rank()].item(), norm, _weights(model), most))
    return found


def _number(value: Any) -> float | None:
    """Return a returned value as a number; of a `DTensor`, this rank's part."""
    if isinstance(value, DTensor):
        value = value.to_local()
    return float(value.detach() if isinstance(value, Tensor) else value) if value is not None else None


def _pair(returned: Any) -> list[float | None]:
    """Return the loss and the norm that were returned, None for a value that is not a number."""
    try:
        loss, norm = returned
        return [_number(loss), _number(norm)]
    except (TypeError, ValueError, RuntimeError):
        return [None, None]


def _work(answer: Step, seed: int, limit: float) -> Evidence:
    """One rank: two steps of the answer beside those of one process; then a plain backward pass."""
    model = Blocks(BLOCKS, WIDTH, ends=True, seed=seed)
    alone, before = _one_process(copy.deepcopy(model), seed, limit), _weights(model)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for unit in (*model.blocks, model):
        fully_shard(unit, mesh=mesh)
    optimizer, rows, steps = _sgd(model), [], []
    model.register_forward_pre_hook(lambda module, args: rows.append(len(args[0])))
    for step, (loss, norm, weights, most) in enumerate(alone):
        rows.clear()
        micro_batches = _micro_batches(seed, step, dist.get_rank())
        with Collectives() as said:
            returned = answer(model, optimizer, micro_batches, most)
        after, length = _weights(model), (weights - before).norm()
        steps.append(
            {
                "rows": list(rows),
                "returned": _pair(returned),
                "right": [loss, norm],
                "off": ((after - weights).norm() / length).item(),
                "length": ((after - before).norm() / length).item(),
                "calls": dict(Counter(call.name for call in said.calls)),
                "left": sum(p.grad is not None for p in model.parameters()),
            }
        )
        before = weights
    x, y = micro_batches[0]
    with Collectives() as said:
        F.mse_loss(model(x), y).backward()
    return {"steps": steps, "plain": said.count("reduce_scatter")}


def observe(seed: int, answer: Step) -> Evidence:
    """Return what each rank saw of both steps, by case."""
    return cases_on_ranks(_work, CASES, answer, seed)


class _OfSteps(Check):
    """Judges step by step, on each rank of each case.

    Attributes:
        depends: whether a step is judged only if the steps before it have left the right weights and no gradients.
    """

    probe = staticmethod(observe)
    depends = False

    @classmethod
    def judge(cls, seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            for rank, (got, right) in enumerate(zip(seen[case], want, strict=True)):
                for step, (mine, theirs) in enumerate(zip(got["steps"], right["steps"], strict=True)):
                    if wrong := cls.wrong(mine, theirs, case.endswith("below")):
                        held_back = cls.depends and _held_back(got["steps"][:step])
                        return held_back or f"{case}, rank {rank}, step {step}: {wrong}"
        return None

    @classmethod
    def wrong(cls, got: Evidence, right: Evidence, clipped: bool) -> str | None:
        """Return what is wrong with one step, None if nothing is."""
        raise NotImplementedError


def _held_back(before: list[Evidence]) -> str | None:
    """Say why a step is not judged after those `before` it, None if it is."""
    for step, got in enumerate(before):
        if got["left"]:
            return f"Not judged after step {step}, which leaves gradients behind: see leaves_the_model_ready."
        if not got["off"] <= CLOSE:
            return f"Not judged after step {step}, whose update is wrong: see the checks of the update."
    return None


class OneMicroBatchAtATime(_OfSteps):
    """The model gets each micro-batch once, in order."""

    hint = "Run a forward and a backward pass per micro-batch. Joined into one batch, they need memory for all at once."

    @classmethod
    def wrong(cls, got: Evidence, right: Evidence, clipped: bool) -> str | None:
        if got["rows"] != right["rows"]:
            return (
                f"the model got batches of {got['rows']} rows; the micro-batches have {right['rows']}. "
                "Call the model once per micro-batch, in order."
            )
        return None


class UpdateOfTheJointBatch(_OfSteps):
    """Below the limit, the update is that of one process on the rows of all micro-batches and ranks."""

    hint = (
        "Each row counts the same, and micro-batches have different numbers of rows. What factor does a micro-batch's "
        "mean need before backward()?\n"
        "fully_shard averages over the ranks. You choose the weights of the sum over micro-batches."
    )
    depends = True

    @classmethod
    def wrong(cls, got: Evidence, right: Evidence, clipped: bool) -> str | None:
        rows = " Micro-batches have different numbers of rows: does each row count the same?"
        return None if clipped or got["off"] <= CLOSE else _off(got) + rows


class ClippedByTheJointNorm(_OfSteps):
    """Above the limit, the joint gradient is scaled to the limit before the optimizer steps."""

    hint = (
        "Clip once, when all micro-batches have been reduced, and before the step.\n"
        "The norm of a rank's shards is not the norm of the gradient. What does clip_grad_norm_ do with DTensors?"
    )
    depends = True

    @classmethod
    def judge(cls, seen: Evidence, expected: Evidence) -> str | None:
        wrong = super().judge(seen, expected)
        if wrong and UpdateOfTheJointBatch.judge(seen, expected):
            return "Not judged until the update below the limit is correct: see update_of_the_joint_batch."
        return wrong

    @classmethod
    def wrong(cls, got: Evidence, right: Evidence, clipped: bool) -> str | None:
        when = " Is the gradient clipped once, by the joint norm, after the last micro-batch and before the step?"
        return _off(got) + when if clipped and not got["off"] <= CLOSE else None


def _off(got: Evidence) -> str:
    return (
        f"the update differs from that of one process by {got['off']:.2g} (relative); "
        f"its norm is {got['length']:.3g} times as large."
    )


class ReducesOnce(_OfSteps):
    """Gradients are reduced once per unit and step, however many micro-batches there are."""

    hint = (
        "model.set_requires_gradient_sync(False) turns off the reductions of the backward passes that follow. "
        "For which micro-batches?"
    )

    @classmethod
    def wrong(cls, got: Evidence, right: Evidence, clipped: bool) -> str | None:
        mine, theirs = (one["calls"].get("reduce_scatter", 0) for one in (got, right))
        if mine != theirs:
            return (
                f"it sent {mine} reduce-scatters for {BLOCKS + 1} units and {len(ROWS)} micro-batches; {theirs} are "
                "enough. In which backward passes is sync on?"
            )
        return None


class ReturnsLossAndNorm(_OfSteps):
    """Returns the mean loss over this rank's rows, and the joint gradient's norm before clipping."""

    hint = (
        "clip_grad_norm_ returns the norm before clipping, as a DTensor: full_tensor() converts it to a plain tensor.\n"
        "A micro-batch has the same weight in the mean loss as in the gradient."
    )
    depends = True

    @classmethod
    def wrong(cls, got: Evidence, right: Evidence, clipped: bool) -> str | None:
        pairs = zip(got["returned"], right["right"], ("loss", "norm"), strict=True)
        for mine, theirs, name in pairs:
            if mine is None:
                return f"the returned {name} is not a number; return the loss and the norm."
            if not abs(mine - theirs) <= CLOSE * abs(theirs):
                look = {
                    "loss": "What weight does each micro-batch have in it?",
                    "norm": "Is it the norm of the joint gradient, before clipping?",
                }
                return f"the returned {name} is {mine:.5g}; it should be {theirs:.5g}. {look[name]}"
        return None


class LeavesTheModelReady(Check):
    """Afterwards no parameter has a gradient, and the next plain backward pass is reduced."""

    hint = "Clear the gradients after the step. A switch that is turned off stays off until it is turned on again."
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            for rank, (got, right) in enumerate(zip(seen[case], want, strict=True)):
                for step, mine in enumerate(got["steps"]):
                    if mine["left"]:
                        return (
                            f"{case}, rank {rank}, step {step}: {mine['left']} parameters still have gradients "
                            "afterwards. Where are they cleared?"
                        )
                if got["plain"] != right["plain"]:
                    return (
                        f"{case}, rank {rank}: a plain backward pass after your steps sends {got['plain']} "
                        f"reduce-scatters instead of {right['plain']}, so gradients are not averaged. Is sync on again?"
                    )
        return None


STEP = (
    OneMicroBatchAtATime,
    UpdateOfTheJointBatch,
    ClippedByTheJointNorm,
    ReducesOnce,
    ReturnsLossAndNorm,
    LeavesTheModelReady,
)
