"""Checks of part 2: evaluation shared by the ranks."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ...core.device import rank_device
from ..base import Check, Evidence
from ..probing.on_ranks import on_ranks
from .material import Net, Rows, as_measured, near


def _evaluation(evaluate: Callable[..., Any], seed: int, n: int, training: bool) -> Evidence:
    torch.manual_seed(seed)
    inner = Net(dropout=0.5, norm=True).to(rank_device())
    model = DistributedDataParallel(inner)
    model.train(training)
    calls: list[tuple[int, bool, bool]] = []
    inner.register_forward_pre_hook(
        lambda module, args: calls.append((len(args[0]), module.training, torch.is_grad_enabled()))
    )
    metrics = evaluate(model, Rows(seed, n), 5)
    return {
        "metrics": {name: as_measured(value) for name, value in dict(metrics).items()},
        "rows": [rows for rows, _, _ in calls],
        "train mode": any(mode for _, mode, _ in calls),
        "graph": any(graph for _, _, graph in calls),
        "mode after": inner.training,
        "wrapper after": model.training,
    }


EVALUATIONS = {
    "40 rows, 2 ranks": (2, 40, True),
    "41 rows, 2 ranks": (2, 41, True),
    "37 rows, 3 ranks": (3, 37, False),
    "2 rows, 3 ranks": (3, 2, True),
}


class EveryTestRowCountsOnce(Check):
    """Loss and accuracy are those of the whole data set, each row once, the same on every rank."""

    points = 1
    hint = (
        "A DistributedSampler repeats rows until all ranks have as many. Take every N-th row yourself, sum losses, "
        "right answers and rows, all_reduce the three sums, then divide."
    )

    @staticmethod
    def probe(seed: int, evaluate: Callable[..., Any]) -> Evidence:
        return {
            case: on_ranks(_evaluation, ranks, evaluate, seed, n, training)
            for case, (ranks, n, training) in EVALUATIONS.items()
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            for rank, (got, right) in enumerate(zip(seen[case], want, strict=True)):
                for name, value in right["metrics"].items():
                    answer = got["metrics"].get(name)
                    if not isinstance(answer, float):
                        return f"{case}: the {name} of rank {rank} is {answer}; a Python float is asked for."
                    if not near(answer, value):
                        return f"{case}: the {name} of rank {rank} is {answer:.6g}; over all rows it is {value:.6g}."
        return None


class EvaluationSharesTheWork(Check):
    """No rank sees more than its part; evaluation mode without a graph, and the mode restored."""

    points = 1
    hint = "range(rank, len(dataset), world_size); model.module.eval() and torch.no_grad(); remember the mode."

    @staticmethod
    def probe(seed: int, evaluate: Callable[..., Any]) -> Evidence:
        return EveryTestRowCountsOnce.probe(seed, evaluate)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case in expected:
            ranks, n, training = EVALUATIONS[case]
            most = -(-n // ranks)
            for rank, got in enumerate(seen[case]):
                where = f"{case}: rank {rank}"
                if sum(got["rows"]) > most:
                    return f"{where} ran {sum(got['rows'])} rows through the model; its part has at most {most}."
                if max(got["rows"], default=0) > 5:
                    return f"{where} ran {max(got['rows'])} rows at once; batch_size is 5."
                if got["train mode"]:
                    return f"{where} ran the model in training mode."
                if got["graph"]:
                    return f"{where} recorded a graph: torch.no_grad() is missing."
                if got["mode after"] != training:
                    return f"{where} left the model in {'training' if got['mode after'] else 'evaluation'} mode."
                if got["wrapper after"] != training:
                    return f"{where} left the wrapper around the model in another mode; the model's is right."
            if sum(sum(got["rows"]) for got in seen[case]) < n:
                return f"{case}: not all rows went through the model."
        return None


EVALUATE = (EveryTestRowCountsOnce, EvaluationSharesTheWork)
