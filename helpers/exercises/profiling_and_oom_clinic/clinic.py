"""Checks of the clinic: five sick training loops.

A loop is cured when its bytes are those of a healthy one. A cure must compute what the sick loop computed: peak
and numbers are compared with those of the reference cure.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ...core.device import pick_device
from ...core.models import SmallGPT
from ...meter.recorder import MemoryMeter
from ..base import Check, Evidence

ROOM = 1.15  # a cure may hold so many times what the reference holds
SAME = 1e-4  # relative; other orders of summation differ by less


class _Clinic(Check):
    """Runs a loop under the meter and compares its bytes and its numbers."""

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        worst = max((abs(a - b) / (abs(b) + 1e-6) for a, b in zip(seen["numbers"], expected["numbers"], strict=True)))
        if not worst <= SAME:
            return "The numbers are others than before: a cure must not change the treatment."
        if seen["peak"] > ROOM * expected["peak"]:
            held, enough = (n / 2**20 for n in (seen["peak"], expected["peak"]))
            return f"Still {held:.1f} MiB at the peak, in {seen['at']}; {enough:.1f} are enough."
        return None


def _measured(model: nn.Module, optimizer: Any, run: Callable[[], Any]) -> Evidence:
    with MemoryMeter(model, optimizer) as meter:
        numbers = run()
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    sums = [float(n.detach() if isinstance(n, Tensor) else n) for n in numbers] + [
        weights.norm().item(),
        weights.abs().sum().item(),
    ]
    return {"peak": meter.peak_bytes, "numbers": sums, "at": meter.peak_at}


def _gpt(seed: int) -> tuple[SmallGPT, list[Tensor]]:
    torch.manual_seed(seed)
    device = pick_device()
    batches = [torch.randint(256, (8, 65), device=device) for _ in range(4)]
    return SmallGPT(context=64, layers=2, width=64).to(device), batches


class HistoryLetsGo(_Clinic):
    """The training loop returns its losses and holds one step's graph at a time."""

    hint = (
        "What does a loss in a list hold on to? And does anybody need the graph after backward()?\n"
        "`loss.detach()` or `loss.item()` is a number without a graph; `retain_graph=True` keeps what backward() frees."
    )

    @staticmethod
    def probe(seed: int, train_and_log: Any) -> Evidence:
        model, batches = _gpt(seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)  # large, so that a step left out shows
        return _measured(model, optimizer, lambda: train_and_log(model, optimizer, batches))


class HeadInPieces(_Clinic):
    """The loss of a large vocabulary, forward and backward, without all logits at once."""

    hint = (
        "Rows are independent: which sum of their losses is the mean of all?\n"
        "Loop over chunks of rows; checkpoint each chunk's logits and loss, so that only its inputs are kept.\n"
        '`F.cross_entropy(..., reduction="sum")` for each chunk, and one division by the number of rows at the end.'
    )

    @staticmethod
    def probe(seed: int, head_loss: Any) -> Evidence:
        torch.manual_seed(seed)
        device = pick_device()
        head = nn.Linear(64, 4000, bias=False).to(device)
        hidden = torch.randn(1000, 64, device=device, requires_grad=True)  # not a multiple of a chunk
        targets = torch.randint(4000, (1000,), device=device)

        def run() -> list[float]:
            loss = head_loss(head, hidden, targets)
            loss.backward()
            return [loss.item(), hidden.grad.norm().item(), head.weight.grad.norm().item()]

        return _measured(head, None, run)


class EvaluationKeepsNothing(_Clinic):
    """The evaluation returns the mean loss and keeps no graph."""

    hint = (
        "Nobody will call backward() here. Who keeps the activations, then?\n"
        "Tell autograd: `torch.no_grad()` around the loop."
    )

    @staticmethod
    def probe(seed: int, evaluate: Any) -> Evidence:
        model, batches = _gpt(seed)
        batches.append(batches[0][:2])  # a smaller last one
        return _measured(model, None, lambda: [evaluate(model, batches)]) | {"training": model.training}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["training"] != expected["training"]:
            return "The model came in training mode and left in evaluation mode: leave it as you found it."
        return _Clinic.judge(seen, expected)


class OptimizerTakesTurns(_Clinic):
    """Adam's update with the same numbers and without a second copy of all parameters."""

    hint = (
        "Look at the operation of the peak: on how many parameters does it work at once?\n"
        "`torch.optim.Adam` has three implementations of the same update: for-loop, foreach and fused."
    )

    @staticmethod
    def probe(seed: int, make_optimizer: Any) -> Evidence:
        torch.manual_seed(seed)
        device = pick_device()
        model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(6))).to(device)
        x = torch.randn(4, 256, device=device)
        optimizer = make_optimizer(model.parameters())

        def run() -> list[float]:
            losses = []
            for _ in range(3):
                optimizer.zero_grad()
                loss = model(x).square().mean()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            return losses

        how = {key: optimizer.param_groups[0].get(key) for key in ("foreach", "fused", "weight_decay")}
        return _measured(model, optimizer, run) | how

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["foreach"] is None and not seen["fused"]:
            return "foreach is left open; on a GPU that means foreach=True, which is the illness."
        if seen["weight_decay"] != expected["weight_decay"]:
            return f"weight_decay is {seen['weight_decay']}; the updates would be others."
        return _Clinic.judge(seen, expected)


class HookForgets(_Clinic):
    """The means of all activations are logged, and no activation outlives its use."""

    hint = (
        "A hook that stores a tensor keeps it. What does the log need of it?\n"
        "`output.mean().item()` is a number and holds on to nothing; and no dictionary needs the output itself."
    )

    @staticmethod
    def probe(seed: int, log_means: Any) -> Evidence:
        model, batches = _gpt(seed)
        model.requires_grad_(False)  # inference: nothing else should be held
        means: dict[str, Any] = {}

        def run() -> list[float]:
            log_means(model, means)
            for batch in batches:
                model(batch[:, :-1])
            leaves = [name for name, module in model.named_modules() if not list(module.children())]
            return [float(means[name]) for name in leaves]

        return _measured(model, None, run)
