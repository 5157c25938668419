"""Check of buckets that are sent while the backward pass is still running.

The check looks at the order of events, not at a clock: how many gradients were complete when each all-reduce began, and
whether a rank reaches the end of its backward pass before another one has begun.
"""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ...meter.operations_seen import OperationWatch
from ..base import Check, Evidence
from ..probing.cases import cases_on_ranks
from ..probing.distance import relative_distance

EXACT = 1e-9  # relative, in FP64
WIDTH = 8
PATIENCE = 6.0  # seconds that a rank waits for another one's signal
BREAK = 1.5  # seconds: long enough for the ranks to exchange all other buckets


class _Net(nn.Module):
    """Three layers and four heads in FP64, and a frozen number. A head may be left out.

    In the order in which gradients are packed, they have 192, 768, 64, 256, 768, 1536 and 2560 bytes; or 512 bytes
    each if they are equal.
    """

    def __init__(self, equal: bool = False) -> None:
        super().__init__()
        first, second, *heads = [WIDTH] * 6 if equal else [24, 4, 1, 12, 3, 40]
        self.last, self.trunk = nn.Linear(WIDTH, heads.pop(), bias=False), nn.ModuleList()
        self.trunk.extend(nn.Linear(a, b, bias=False) for a, b in ((WIDTH, first), (first, second), (second, WIDTH)))
        self.frozen = nn.Parameter(torch.ones(1), requires_grad=False)
        self.heads = nn.ModuleList(nn.Linear(WIDTH, b, bias=False) for b in heads)
        self.double()

    def forward(self, x: torch.Tensor, heads: tuple[int, ...]) -> torch.Tensor:
        for layer in self.trunk:
            x = torch.tanh(layer(x) + self.frozen)
        every = [*self.heads, self.last]
        return sum(every[i](x).square().mean() for i in heads)


@dataclass(frozen=True)
class _Run:
    """Buckets that close at so many bytes, and which heads each rank uses, step by step."""

    bucket_bytes: int
    heads: tuple[tuple[tuple[int, ...], ...], ...]
    late: bool = False  # rank 1 begins its backward pass when rank 0 has finished its own
    equal: bool = False  # all parameters have one size, so that messages in the wrong order still fit each other


ALL = (0, 1, 2, 3)
EVERY = ((ALL,) * 3,) * 3
RUNS = {
    1: {"buckets of 960 bytes": _Run(960, EVERY)},
    2: {
        "buckets of 960 bytes": _Run(960, EVERY),  # the first two parameters hold 960
        "buckets of 961 bytes": _Run(961, EVERY),
        "a bucket each": _Run(1, EVERY),
        "one bucket": _Run(10**6, EVERY),
        "rank 1 late": _Run(960, ((ALL, ALL),), late=True),
    },
    3: {"buckets of 3,000 bytes": _Run(3000, EVERY)},  # the last one holds less
}
# Head 3 belongs to the parameter that is in the last bucket; here it is used in the last step only. Head 0 is used by
# one rank in a step and by the other in the next.
A, B = (0, 2), (1, 2)
BRANCHES = {
    2: {"each rank with its own head": _Run(1, ((A, B), (B, A), (ALL, ALL)), equal=True)},
    3: {"each rank with its own head": _Run(1024, ((A, B, A), (B, A, B), (ALL,) * 3), equal=True)},
}


class _Calls(OperationWatch):
    """Records each all-reduce: its bytes, how many gradients were complete, and whether the backward pass was over."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.arrived, self.over = 0, False
        self.calls: list[tuple[int, int, bool]] = []
        self.others: list[str] = []
        for p in model.parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(self._arrive)

    def _arrive(self, _: torch.Tensor) -> None:
        self.arrived += 1

    def begin(self) -> None:
        """Begin a step."""
        self.arrived, self.over, self.calls = 0, False, []

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if func.namespace == "c10d":
            name = func._schema.name.partition("::")[2]
            if name.startswith("allreduce"):
                self.calls.append((sum(t.nbytes for t in args[0]), self.arrived, self.over))
            else:
                self.others.append(name.rstrip("_"))


def _made(seed: int, run: _Run) -> _Net:
    torch.manual_seed(seed)
    return _Net(run.equal)


def _rows(seed: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + 10 * step + dist.get_rank())
    return torch.randn(5, WIDTH, dtype=torch.float64, generator=generator)


def _gradients(model: nn.Module) -> list[list[float] | None]:
    return [None if p.grad is None else p.grad.flatten().tolist() for p in model.parameters()]


def _by_ddp(seed: int, run: _Run) -> list[Any]:
    """Return the gradients that DDP leaves on this rank, step by step."""
    model, steps = _made(seed, run), []
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    for step, heads in enumerate(run.heads):
        ddp.zero_grad()
        ddp(_rows(seed, step), heads[dist.get_rank()]).backward()
        steps.append(_gradients(model))
    return steps


def _steps(bucketed: Callable[..., Any], seed: int, run: _Run) -> Evidence:
    """One rank: some steps with the learner's buckets, and the same ones with DDP."""
    right = _by_ddp(seed, run)
    model = _made(seed, run)
    calls = _Calls(model)
    buckets = bucketed(model, run.bucket_bytes)
    steps = []
    with calls:
        for step, heads in enumerate(run.heads):
            model.zero_grad()
            calls.begin()
            model(_rows(seed, step), heads[dist.get_rank()]).backward()
            calls.over = True
            buckets.finish()
            steps.append({"calls": calls.calls, "gradients": _gradients(model)})
    return {"steps": steps, "ddp": right, "others": calls.others}


def _patient(bucketed: Callable[..., Any], seed: int, folder: str, run: _Run) -> Evidence:
    """Rank 1 begins its backward pass only when rank 0 has finished its own, or after `PATIENCE`.

    It also pauses before the first layer, so that the last bucket returns well after the others.
    """
    rank, flag = dist.get_rank(), Path(folder, "through")
    right = _by_ddp(seed, run)
    model = _made(seed, run)
    first = next(p for p in model.parameters() if p.requires_grad)
    if rank == 1:
        first.register_hook(lambda gradient: time.sleep(BREAK))
    buckets = bucketed(model, run.bucket_bytes)
    loss = model(_rows(seed, 0), run.heads[0][rank])
    deadline = time.monotonic() + PATIENCE
    while rank == 1 and not flag.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    through = flag.exists()
    loss.backward()
    if rank == 0:
        flag.touch()
    buckets.finish()
    return {"through": through, "ddp": right, "steps": [{"gradients": _gradients(model)}]}


def _run(bucketed: Callable[..., Any], seed: int, folder: str, run: _Run) -> Evidence:
    """One rank: a run."""
    return _patient(bucketed, seed, folder, run) if run.late else _steps(bucketed, seed, run)


def observe(seed: int, bucketed: Callable[..., Any]) -> Evidence:
    """Return what each rank measured where all of them use all parameters."""
    with tempfile.TemporaryDirectory() as folder:
        return cases_on_ranks(_run, RUNS, bucketed, seed, folder)


def _named(seen: Evidence, late: bool) -> list[str]:
    """Return the cases of `seen` in which a rank is late, or the others."""
    return [case for case in seen if case.endswith("late") == late]


def _wrong_gradients(case: str, seen: list[Evidence], expected: list[Evidence]) -> str | None:
    """Say which gradient of which rank is not DDP's. Where no rank has a gradient, None is as good as zeros."""
    names = [name for name, _ in _Net().named_parameters()]
    for rank, (got, want) in enumerate(zip(seen, expected, strict=True)):
        for step, right in enumerate(want["ddp"]):
            where = f"{case}, step {step}, rank {rank}"
            mine = got["steps"][step]["gradients"]
            for name, a, b in zip(names, mine, right, strict=True):
                if name == "frozen" and a is not None:
                    return f"{where}: the frozen parameter has a gradient. Leave out parameters without requires_grad."
                if b is None and (a is None or not any(a)):
                    continue
                if a is None:
                    return (
                        f"{where}: {name} has no gradient; it should have the average over the ranks. Does `finish()` "
                        "set `.grad` of every parameter in a bucket, also where it was None?"
                    )
                if not relative_distance(a, b or [0.0] * len(a)) <= EXACT:
                    length = torch.tensor(a).norm() / max(torch.tensor(b or [0.0]).norm(), torch.tensor(1e-30))
                    return (
                        f"{where}: the gradient of {name} is not DDP's; its norm is {length:.3g} times as large. "
                        "Is each sum complete when it is read, and divided by the number of ranks?"
                    )
    return None


class GradientsEqualDdp(Check):
    """After backward and `finish()` every rank has the averaged gradients that DDP gives, step after step."""

    hint = (
        "Does the second step begin like the first one, with no gradient ready and no bucket sent?\n"
        "An all-reduce adds; where do you divide by the number of ranks? Each part goes back in the shape of its "
        "parameter.\nWhat must have happened before the numbers in a flat tensor may be read?"
    )

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case in _named(expected, late=False):
            wrong = _wrong_gradients(case, seen[case], expected[case])
            if wrong:
                return wrong
        return None


class OneMessageABucket(Check):
    """There is one all-reduce per bucket, of the sizes that the contract gives, including the smaller last one."""

    hint = (
        "Start with the last parameter. A bucket is closed once it holds `bucket_bytes` or more; the next parameter "
        "opens a new one.\nWhat is in the last bucket when the parameters run out? It is sent as well.\n"
        "`torch.cat` of the flattened gradients makes one message."
    )

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case in _named(expected, late=False):
            want = expected[case]
            for rank, got in enumerate(seen[case]):
                if got["others"]:
                    return f"{case}, rank {rank}: it called {got['others'][0]}; one all-reduce per bucket is enough."
                for step, right in enumerate(want[rank]["steps"]):
                    mine = [nbytes for nbytes, _, _ in got["steps"][step]["calls"]]
                    sizes = [nbytes for nbytes, _, _ in right["calls"]]
                    if mine != sizes and sorted(mine) == sorted(sizes):
                        return (
                            f"{case}, step {step}, rank {rank}: the buckets have the right sizes, but they are sent in "
                            f"the order {mine}; it should be {sizes}. Which bucket must wait for which?"
                        )
                    if mine != sizes:
                        return (
                            f"{case}, step {step}, rank {rank}: {len(mine)} all-reduces of {mine} bytes; "
                            f"the {len(sizes)} buckets have {sizes}. When is a bucket closed, and what is in the last?"
                        )
        return None


class BucketsLeaveWhenFull(Check):
    """A bucket is sent during the backward pass, as soon as its last gradient is complete."""

    hint = (
        "Is anything sent before `finish()`? A hook on each parameter is called when its gradient is complete.\n"
        "`p.register_post_accumulate_grad_hook(self.arrived)`; in it, record p, then send "
        "buckets for as long as the next one is full."
    )

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case in _named(expected, late=False):
            want = expected[case]
            for rank, got in enumerate(seen[case]):
                for step, right in enumerate(want[rank]["steps"]):
                    mine = got["steps"][step]["calls"]
                    where = f"{case}, step {step}, rank {rank}"
                    if len(mine) < len(right["calls"]):
                        return f"{where}: {len(mine)} buckets were sent; there are {len(right['calls'])}."
                    for bucket, (_, arrived, over) in enumerate(right["calls"]):
                        if mine[bucket][2] and not over:
                            return f"{where}: bucket {bucket} was sent after the backward pass; it was full before."
                        if mine[bucket][1] > arrived:
                            return (
                                f"{where}: bucket {bucket} was sent when {mine[bucket][1]} gradients were complete; "
                                f"it was full at {arrived}."
                            )
        return None


class BackwardDoesNotWait(Check):
    """The backward pass continues while a bucket travels; `finish()` waits for all results."""

    hint = (
        "What does `dist.all_reduce(flat)` do until the other ranks have sent theirs?\n"
        "`work = dist.all_reduce(flat, async_op=True)` in the hook, `work.wait()` in `finish()`, and not before."
    )

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        (case,) = _named(expected, late=True)
        if not seen[case][1]["through"]:
            return (
                "Before rank 1 began its backward pass, rank 0 got stuck in its own: a hook waits for the other ranks. "
                "Which of its calls returns only when all ranks have made it?"
            )
        wrong = _wrong_gradients(case, seen[case], expected[case])
        return f"{wrong} Does `finish()` wait for every bucket?" if wrong else None


class HandlesMissingGradients(Check):
    """A parameter without a gradient on a rank counts as zeros there, and all ranks send the same buckets."""

    hint = (
        "One rank takes a branch that another does not. Which bucket does each of them send first?\n"
        "A bucket that is full waits for those before it, so that the order is the same everywhere.\n"
        "`finish()` sends the rest: `torch.zeros_like(p)` where `p.grad is None`."
    )

    @staticmethod
    def probe(seed: int, bucketed: Callable[..., Any]) -> Evidence:
        return cases_on_ranks(
            _steps, BRANCHES, bucketed, seed
        )  # apart from the others: ranks that send differently hang

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        wrong = GradientsEqualDdp.judge(seen, expected)
        return f"{wrong} Do all ranks send the same buckets, in the same order?" if wrong else None


OVERLAP = (
    GradientsEqualDdp,
    OneMessageABucket,
    BucketsLeaveWhenFull,
    BackwardDoesNotWait,
    HandlesMissingGradients,
)
