"""Checks of how the functions and layers behave: what they send, what they change, and whether the ranks agree."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ...ranks.collectives import Collectives
from ..base import Check, Evidence
from ..probing.cases import case_name, cases_on_ranks
from .inputs import drawn, leaf
from .said import by_rank, noted, wrong_passes

IN, OUT = 6, 12  # features of x and of y: both divide by 2 and by 3


def _sent(seed: int, Enter: Any, Leave: Any, column: Any, row: Any) -> Evidence:
    """One rank: what each function sends, forward and backward, and the dtypes of what it returns."""
    seen = {}
    for dtype in (torch.float32, torch.bfloat16):
        x, part, gap = (drawn(seed + i, *shape, dtype=dtype)[0] for i, shape in enumerate(((5, IN), (5, 3), (OUT,))))
        weights = [t[0] for t in (drawn(seed + 5, 4, IN, dtype=dtype), drawn(seed + 6, OUT, 3, dtype=dtype))]
        calls = {
            "Enter": (Enter.apply, [x]),
            "Leave": (Leave.apply, [x]),
            "column": (column, [x, weights[0]]),
            "row": (row, [part, weights[1], gap]),
        }
        for name, (function, inputs) in calls.items():
            leaves = [leaf(t) for t in inputs]
            with Collectives() as forward:
                y = function(*(t * 1 for t in leaves))
            with Collectives() as backward:
                y.backward(torch.ones_like(y))  # with its own memory: the gradient of `y.sum()` is one number, expanded
            got = [y.dtype, *(None if t.grad is None else t.grad.dtype for t in leaves)]
            seen[f"{name}, {str(dtype).removeprefix('torch.')}"] = {
                "forward": [list(call) for call in forward.calls],
                "backward": [list(call) for call in backward.calls],
                "dtypes": [str(d).removeprefix("torch.") for d in got],
            }
    return seen


def _kept(seed: int, Enter: Any, Leave: Any, column: Any, row: Any) -> Evidence:
    """One rank: whether inputs and incoming gradients stay unchanged."""
    rank, changed = dist.get_rank(), {}
    for name, function in (("Enter", Enter), ("Leave", Leave)):
        xs, back = drawn(seed, 3, 4), drawn(seed + 1, 3, 4)
        before, came = leaf(xs[rank]), []
        h = before * 1
        y = function.apply(h)
        if y.requires_grad:
            y.register_hook(lambda gradient, came=came: came.append((gradient, gradient.clone())))
        (h + y).backward(back[rank].clone())  # a residual path: one gradient for both
        changed[f"the tensor that {name} takes"] = not torch.equal(h.detach(), xs[rank])
        changed[f"the incoming gradient of {name}"] = any(not torch.equal(now, then) for now, then in came)
    x, part = drawn(seed + 2, 5, IN)[0], drawn(seed + 3, 5, 3)[0]
    weights, bias = (drawn(seed + 4, 4, IN)[0], drawn(seed + 5, OUT, 3)[0]), drawn(seed + 6, OUT)[0]
    for name, function, inputs in (("column", column, (x, weights[0])), ("row", row, (part, weights[1], bias))):
        mine = [t.clone().requires_grad_() for t in inputs]
        back = torch.ones(5, OUT if name == "row" else 4, dtype=x.dtype, device=x.device)
        function(*(t * 1 for t in mine)).backward(back)
        function(*mine).backward(back)
        for what, new, old in zip(("x", "weight", "bias"), mine, inputs, strict=False):
            changed[f"{what} of {name}"] = not torch.equal(new.detach(), old)
        changed[f"the incoming gradient of {name}"] = not bool((back == 1).all())
    return changed


def _again(seed: int, Enter: Any, Leave: Any, column: Any, row: Any) -> Evidence:
    """One rank: two calls with inputs of the same shape, then both backward passes, the first call's last."""
    rank, wrong = dist.get_rank(), {}
    weights = drawn(seed + 4, 4, IN)[rank], drawn(seed + 5, OUT, 3)[rank]
    calls = {
        "Enter": (Enter.apply, (5, 4)),
        "Leave": (Leave.apply, (5, 4)),
        "column": (lambda x: column(x, weights[0]), (5, IN)),
        "row": (lambda x: row(x, weights[1], None), (5, 3)),
    }
    for name, (function, shape) in calls.items():
        inputs = [leaf(drawn(seed + i, *shape)[rank]) for i in (0, 1)]
        outputs = [function(inputs[0] * 1)]
        first = outputs[0].detach().clone()
        outputs.append(function(inputs[1] * 1))
        wrong[f"{name}, the first result after a second call"] = changed = not torch.equal(outputs[0].detach(), first)
        if changed:  # PyTorch raises its own error in the backward pass
            wrong[f"{name}, the first gradient after a second call"] = True
            continue
        back = [drawn(seed + 2 + i, *outputs[0].shape)[rank] for i in (0, 1)]
        for i in (1, 0):
            (outputs[i] * back[i]).sum().backward()
        alone = leaf(inputs[0])
        (function(alone * 1) * back[0]).sum().backward()
        same = inputs[0].grad is not None and torch.allclose(inputs[0].grad, alone.grad)
        wrong[f"{name}, the first gradient after a second call"] = not same
    return wrong


def _outputs(seed: int, _: Any, Leave: Any, __: Any, row: Any) -> Evidence:
    """One rank: in BF16, sums of parts that nearly cancel, with a rounding error in each."""
    rank, n, dtype = dist.get_rank(), dist.get_world_size(), torch.bfloat16
    parts = drawn(seed, 64, dtype=dtype)
    parts[-1] = -sum(parts[:-1], start=torch.zeros_like(parts[0])) + parts[-1] / 50
    x, weight = drawn(seed + 1, 8, 2 * n)[0], drawn(seed + 2, OUT, 2 * n)[0]
    x[:, -1] = -x[:, 0]
    weight[:, -1] = weight[:, 0] * 1.01
    mine = [t.chunk(n, dim=1)[rank].to(dtype) for t in (x, weight)]
    return {
        "Leave": noted(Leave.apply(parts[rank].requires_grad_())),
        "row": noted(row(mine[0].requires_grad_(), mine[1], drawn(seed + 3, OUT, dtype=dtype)[0])),
    }


CASES = {3: {"messages": _sent, "what comes in": _kept, "two calls": _again, "16 bits": _outputs}}
MESSAGES, KEPT, AGAIN, BITS = (case_name(3, name) for name in CASES[3])


def _case(answers: tuple[Any, ...], seed: int, work: Callable[..., Evidence]) -> Evidence:
    """One rank: a case."""
    return work(seed, *answers)


def _observe(seed: int, *answers: Any) -> Evidence:
    """Return what each of three ranks measured, by case."""
    return cases_on_ranks(_case, CASES, answers, seed)


class SendsOneAllReduce(Check):
    """Each sends one all-reduce of its tensor, in one direction only, and keeps the dtype."""

    hint = (
        "Count the calls. Is anything sent twice, without need, or in another dtype?\n"
        "Enter and column send in the backward pass, Leave and row in the forward pass."
    )

    probe = staticmethod(_observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        ranks = seen[MESSAGES]
        for case, want in expected[MESSAGES][0].items():
            if said := wrong_passes(case, [got[case] for got in ranks], want):
                return f"{said}\nIn which direction does this function sum, and which tensor?"
            texts = [
                None
                if got[case]["dtypes"] == want["dtypes"]
                else f"{', '.join(got[case]['dtypes'])}; they should be {', '.join(want['dtypes'])}"
                for got in ranks
            ]
            if said := by_rank(f"{case}, dtypes of the result and of the gradients", texts):
                return f"{said}\nReduce in the dtype of the tensor that comes in."
        return None


class KeepsWhatComesIn(Check):
    """Inputs and incoming gradients, which other paths may use as well, are not changed."""

    hint = (
        "`dist.all_reduce(t)` writes into t, which another part of the model may still use.\n"
        "Reduce a copy, `t.clone()`, in the forward pass and in the backward pass."
    )

    probe = staticmethod(_observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for what in expected[KEPT][0]:
            texts = ["was changed in place" if got[what] else None for got in seen[KEPT]]
            if said := by_rank(what, texts):
                return f"{said}\nWhich tensor does `dist.all_reduce` write into?"
        return None


class CallsDoNotMix(Check):
    """A call does not change an earlier call's result, or the gradient that passes back through that result."""

    hint = "A tensor that you store on the class or in a global holds only the latest call."

    probe = staticmethod(_observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for what in expected[AGAIN][0]:
            texts = ["has changed" if got[what] else None for got in seen[AGAIN]]
            if said := by_rank(what, texts):
                return (
                    f"{said}\nWhere does a call store tensors: in `ctx`, or in a place that the next call overwrites?"
                )
        return None


class RanksAgree(Check):
    """Where the paths merge, all ranks hold the same numbers to the last bit, also in 16 bits."""

    hint = (
        "Adding and subtracting this rank's own part rounds differently on each rank.\n"
        "Return the all-reduced tensor itself, from the forward of a Function."
    )

    probe = staticmethod(_observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name in expected[BITS][0]:
            first, *others = (torch.tensor(got[name]["numbers"]) for got in seen[BITS])
            for rank, other in enumerate(others, 1):
                if different := int((first != other).sum()):
                    return (
                        f"{name}, BF16: {different} of {len(first)} numbers on rank {rank} differ from rank 0's; "
                        f"the largest difference is {(first - other).abs().max():.2g}. Is the all-reduced tensor "
                        "returned as it is?"
                    )
        return None


CONDUCT = (SendsOneAllReduce, KeepsWhatComesIn, CallsDoNotMix, RanksAgree)
