"""Checks of part 2: an evaluation that the ranks share. Both judge the same calls."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ...core.device import rank_device
from ..base import Check, Evidence
from ..probing.cases import case_name, cases_on_ranks
from ..probing.on_forward import on_forward
from ..probing.two_devices import watch_devices
from .material import Net, Rows, as_measured, near

BATCH = 5


@dataclass(frozen=True)
class _Case:
    """A data set of so many rows, and the mode of the model; with `frozen`, two layers are in evaluation mode.

    With `recording` PyTorch records graphs when the evaluation begins; without, the caller has switched that off.
    """

    rows: int
    training: bool = True
    frozen: bool = False
    recording: bool = True


CASES = {
    2: {"40 rows": _Case(40), "41 rows": _Case(41), "12 rows, BatchNorm frozen": _Case(12, frozen=True)},
    3: {
        "37 rows, model in evaluation mode": _Case(37, training=False),
        "2 rows": _Case(2),
        "16 rows": _Case(16, recording=False),
    },
}
EVALUATIONS = {case_name(ranks, name): (ranks, case) for ranks in CASES for name, case in CASES[ranks].items()}


def _state(model: torch.nn.Module) -> dict[str, list[torch.Tensor]]:
    """Return what an evaluation must leave as it is, by name."""
    parameters = list(model.parameters())
    return {
        "parameters": [p.detach().clone() for p in parameters],
        "gradients": [torch.zeros(0) if p.grad is None else p.grad.clone() for p in parameters],
        "requires_grad": [torch.tensor(p.requires_grad) for p in parameters],
        "buffers": [b.clone() for b in model.buffers()],
    }


def _evaluation(evaluate: Callable[..., Any], seed: int, case: _Case) -> Evidence:
    """One rank: an evaluation of a model that has taken a step, so that gradients and statistics are there."""
    torch.manual_seed(seed)
    inner = Net(dropout=0.5, norm=True).to(rank_device())
    inner.register_buffer("steps", torch.zeros(1, dtype=torch.float64, device=rank_device()))
    model = DistributedDataParallel(inner)
    model(torch.randn(8, 12, dtype=torch.float64)).square().sum().backward()
    inner.steps.fill_(dist.get_rank())  # between two forward passes in training mode, ranks may have other buffers
    model.train(case.training)
    inner.norm.train(case.training and not case.frozen)
    inner.wide[1].train(case.training and not case.frozen)  # within another module
    rows = Rows(seed, case.rows)
    calls: list[tuple[int, bool, bool, bool]] = []
    on_forward(
        inner,
        after=lambda module, args, output: calls.append(
            (len(args[0]), module.norm.training, output.requires_grad, torch.is_autocast_enabled("cpu"))
        ),
    )
    met, before, held = watch_devices(inner), _state(inner), [*inner.parameters(), *inner.buffers()]
    torch.manual_seed(seed + dist.get_rank())  # ranks need not draw the same numbers
    torch.set_grad_enabled(case.recording)
    metrics = evaluate(model, rows, BATCH)
    records = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    after, modes = _state(inner), {name: module.training for name, module in inner.named_modules()}
    same = {
        name: all(map(torch.equal, tensors, after[name])) if len(tensors) == len(after[name]) else False
        for name, tensors in before.items()
    }
    seen = {
        "metrics": _measured(metrics),
        "rows": [rows for rows, *_ in calls],
        "read": len(rows.asked),
        "train mode": any(mode for _, mode, _, _ in calls),
        "graph": any(graph for _, _, graph, _ in calls),
        "autocast": any(autocast for *_, autocast in calls),
        "unmoved": sorted(set(met)),
        "modes after": modes,
        "wrapper after": model.training,
        "records": records,
        "changed": [name for name, kept in same.items() if not kept],
        "replaced": any(a is not b for a, b in zip(held, [*inner.parameters(), *inner.buffers()], strict=False)),
    }
    with torch.no_grad():
        inner.head.weight.neg_()  # training goes on
    later = _measured(evaluate(model, rows, BATCH))
    torch.set_grad_enabled(True)  # for the next case
    return seen | {"later": later}


def _measured(metrics: Any) -> dict[str, Any]:
    """Return what a report can carry of a result.

    Raises:
        TypeError: if the result is no dictionary.
    """
    if not isinstance(metrics, dict):
        raise TypeError(f"evaluate returned {type(metrics).__name__}; it should return a dictionary")
    return {name: as_measured(value) for name, value in metrics.items()}


def observe(seed: int, evaluate: Callable[..., Any]) -> Evidence:
    """Return what each rank measured, by case."""
    return cases_on_ranks(_evaluation, CASES, evaluate, seed)


class EveryTestRowCountsOnce(Check):
    """Loss and accuracy are those of the whole data set, each row once, the same on every rank."""

    points = 1
    hint = (
        "A DistributedSampler repeats rows until all ranks have the same number. Take every Nth row yourself, sum "
        "losses, correct answers and rows, all_reduce the three sums, then divide."
    )
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            for rank, (got, right) in enumerate(zip(seen[case], want, strict=True)):
                if got["metrics"].keys() != right["metrics"].keys():
                    return f"{case}: rank {rank} returned {sorted(got['metrics'])}; it should return accuracy and loss."
                wrong = _wrong_number(got["metrics"], right["metrics"], rank)
                if wrong:
                    return f"{case}: {wrong}"
                wrong = _wrong_number(got["later"], right["later"], rank)
                if wrong:
                    return f"{case}, called again after the weights have changed: {wrong}"
        return None


def _wrong_number(got: Evidence, right: Evidence, rank: int) -> str | None:
    """Say which number that this rank returned is wrong."""
    for name, value in right.items():
        answer = got.get(name)
        if not isinstance(answer, float):
            return f"the {name} of rank {rank} is {answer}; it should be a Python float."
        if not near(answer, value):
            return (
                f"the {name} of rank {rank} is {answer:.6g}; over all rows it is {value:.6g}. "
                "Does each row of all ranks count once, and is the whole model in evaluation mode?"
            )
    return None


class EvaluationSharesTheWork(Check):
    """No rank reads or computes more than its part, in evaluation mode, without a graph; the model is unchanged."""

    points = 1
    hint = "Which rows are yours? What does eval() change if one layer is already in evaluation mode?"
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case in expected:
            ranks, of = EVALUATIONS[case]
            most = -(-of.rows // ranks)
            for rank, (got, right) in enumerate(zip(seen[case], expected[case], strict=True)):
                wrong = _wrong_work(got, most) or _wrong_after(got, right, of.training)
                if wrong:
                    return f"{case}: rank {rank} {wrong}"
            if sum(sum(got["rows"]) for got in seen[case]) < of.rows:
                return (
                    f"{case}: {sum(sum(got['rows']) for got in seen[case])} of {of.rows} rows went through the model. "
                    "Which rows does no rank take?"
                )
        return None


def _wrong_work(got: Evidence, most: int) -> str | None:
    """Describe what is wrong with the forward passes of a rank whose part has `most` rows."""
    if sum(got["rows"]) > most:
        return f"ran {sum(got['rows'])} rows through the model; its part has at most {most}. Which rows does it take?"
    if got["read"] > most:
        return f"read {got['read']} rows of the data set; its part has at most {most}, each read once."
    if max(got["rows"], default=0) > BATCH:
        return f"ran {max(got['rows'])} rows at once; batch_size is {BATCH}."
    if got["train mode"]:
        return "ran the model, or a layer of it, in training mode. Call eval() before the first batch."
    if got["graph"]:
        return "recorded a graph: torch.no_grad() is missing."
    if got["autocast"]:
        return "ran the model under autocast. In FP32, its loss would be rounded: evaluate it in its own precision."
    if got["unmoved"]:
        return (
            f"used data at {', '.join(got['unmoved'])} on the CPU. "
            "On a GPU that raises an error: move x and y to the device of the model's parameters."
        )
    return None


def _wrong_after(got: Evidence, right: Evidence, training: bool) -> str | None:
    """Describe what a rank has left changed; the model came in training mode if `training`."""
    for name, came in right["modes after"].items():
        if got["modes after"].get(name) != came:
            mode, layer = "training" if came else "evaluation", f"the layer {name!r}" if name else "the model"
            return f"left {layer} in another mode; it was in {mode} mode before. Which layers does train() set?"
    if got["wrapper after"] != training:
        return "changed the mode of the DDP wrapper and did not restore it."
    if right["records"] and not got["records"]:
        return "left graph recording switched off, so later training gets no gradients."
    if got["records"] and not right["records"]:
        return "was called where graph recording was off, and switched it on. Leave it as it was: use torch.no_grad()."
    if got["replaced"]:
        return "put other tensors in the place of the model's; an optimizer then goes on with those it knows."
    if got["changed"]:
        return f"changed the model's {' and '.join(got['changed'])}; an evaluation leaves them as they are."
    return None


EVALUATE = (EveryTestRowCountsOnce, EvaluationSharesTheWork)
