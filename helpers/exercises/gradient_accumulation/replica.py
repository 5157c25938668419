"""Check of accumulation on a DDP replica: the right gradient, sent once."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..base import Check, Evidence
from ..probing.distance import relative_distance
from ..probing.returned_loss import EXACT, number, wrong_loss
from .watched import gradient_of

CASES = {"32 rows in micro-batches of 8": (32, 8), "21 rows in micro-batches of 8": (21, 8), "one micro-batch": (6, 8)}


@contextlib.contextmanager
def _one_process() -> Iterator[None]:
    """Open a process group of world size one, unless there is a group already."""
    if dist.is_initialized():
        yield
        return
    hook = sys.excepthook  # which a process group replaces, to put its rank before tracebacks
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook


def _model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 5)).double()


def _rows(seed: int, n: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed + n)
    scale = torch.linspace(0.2, 3.0, n, dtype=torch.float64)[:, None]  # losses differ, so that wrong weights show
    return torch.randn(n, 12, dtype=torch.float64) * scale, torch.randint(5, (n,))


def _accumulated(seed: int, rows: int, micro_batch: int, answer: Any) -> Evidence:
    model = _model(seed)
    with _one_process():
        replica, sent = DistributedDataParallel(model), []

        def send(_: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
            sent.append(bucket.buffer().clone())
            done = torch.futures.Future()
            done.set_result(bucket.buffer())
            return done

        replica.register_comm_hook(None, send)
        seen: list[int] = []
        model.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
        loss = number(answer(replica, *_rows(seed, rows), micro_batch))
    size = sum(p.nbytes for p in model.parameters())
    return {
        "gradient": gradient_of(model),
        "times": sum(buffer.nbytes for buffer in sent) / size,
        "last": sent[-1].norm().item() if sent else 0.0,
        "rows": seen,
        "loss": loss,
    }


def _whole(seed: int, rows: int) -> Evidence:
    model = _model(seed)
    x, y = _rows(seed, rows)
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    return {"gradient": gradient_of(model), "loss": loss.item()}


def observe(seed: int, accumulate_replica: Any) -> Evidence:
    """Accumulate on a replica in several cases; note what it was fed and what it sent."""
    runs = {case: _accumulated(seed, *sizes, accumulate_replica) for case, sizes in CASES.items()}
    return {"runs": runs, "whole": {case: _whole(seed, rows) for case, (rows, _) in CASES.items()}}


class SendsTheGradientOnce(Check):
    """The replica sends its gradients once per call, with the last micro-batch."""

    hint = (
        "replica.no_sync() is a context manager. Use it for all micro-batches except the last.\n"
        "When does DDP decide whether a backward pass will send: in the forward pass or in the backward pass? "
        "Try putting no_sync() around both."
    )
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected["runs"].items():
            got = seen["runs"][case]
            if got["times"] == 0:
                return f"{case}: no gradient was sent. The last micro-batch must run outside no_sync()."
            if got["times"] != want["times"]:
                return (
                    f"{case}: {got['times']:.3g} times the size of the gradient was sent; once is enough. Does "
                    "no_sync() enclose the forward pass?"
                )
            left = torch.tensor(got["gradient"], dtype=torch.float64).norm().item()
            if not abs(got["last"] - left) <= EXACT * left:
                return (
                    f"{case}: the gradient that was sent has norm {got['last']:.4g}; the one left in .grad has "
                    f"{left:.4g}. Which micro-batch has to send?"
                )
        return None


class GradientOfTheWholeBatch(Check):
    """The returned loss is the mean over all rows, the gradient is that of the mean; micro-batches come in order."""

    hint = "As in the first task: a micro-batch's mean loss times its share of the rows."
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, whole in expected["whole"].items():
            got = seen["runs"][case]
            if got["rows"] != (right := expected["runs"][case]["rows"]):
                return f"{case}: the model was called with {got['rows']} rows; expected {right}."
            off = relative_distance(got["gradient"], whole["gradient"])
            if not off <= EXACT:
                return (
                    f"{case}: the gradient left in .grad has a relative error of {off:.2g}. Is each micro-batch's mean "
                    "loss weighted by its share of the rows?"
                )
            if wrong := wrong_loss(got["loss"], whole["loss"]):
                return f"{case}: {wrong}"
        return None


REPLICA = (SendsTheGradientOnce, GradientOfTheWholeBatch)
