"""Checks of the clinic: six sick training loops.

Code is cured when its bytes are those of healthy code. A cure must compute what the sick code computed: peak
and numbers are compared with those of the reference cure.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from ...core.device import pick_device
from ...core.models import SmallGPT
from ...meter.operations_seen import each_operation
from ...meter.recorder import MemoryMeter
from ..base import Check, Evidence

ROOM = 1.15  # a cure may hold so many times what the reference holds
MORE = "Still"  # begins the verdict on a peak
SAME = 1e-4  # relative; other orders of summation differ by less
UPSTREAM = 3.0  # what the loss of the head is multiplied by before the backward pass


def _along(tensor: Tensor) -> list[float]:
    """Return a tensor's norm and its components along four random directions: its numbers, their signs and places."""
    flat = tensor.detach().cpu().double().flatten()
    generator = torch.Generator().manual_seed(len(flat))
    directions = (torch.randn(len(flat), generator=generator, dtype=torch.float64) for _ in range(4))
    return [flat.norm().item(), *((flat @ direction).item() for direction in directions)]


def _another(seen: list[float], right: list[float]) -> str | None:
    """Say how a tensor differs from the right one, told by `_along`; None if it does not."""

    def same(factor: float) -> bool:
        room = 10 * SAME * right[0] + 1e-9
        return all(abs(a - factor * b) <= room for a, b in zip(seen[1:], right[1:], strict=True))

    if same(1):
        return None
    if same(-1):
        return "has the wrong sign"
    if same(1 / UPSTREAM):
        return (
            f"is that of the loss itself. The caller multiplied the loss by {UPSTREAM:g}: multiply by the gradient "
            "that `backward` receives"
        )
    ratio = seen[0] / right[0]
    size = "about the norm" if abs(ratio - 1) < 0.01 else f"{ratio:.3g} times the norm"
    return f"has {size} of the correct one, and differs from it in direction or order"


class _Clinic(Check):
    """Runs a loop under the meter and compares its bytes and its numbers."""

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if others := sorted(set(seen["types"]) - set(expected["types"])):
            return (
                f"A module computes in {others[0]}, and the sick code in {' and '.join(expected['types'])}. Another "
                "precision makes what is kept smaller and frees nothing, and it changes the numbers. A cure computes "
                "the same numbers."
            )
        for what, right in expected["numbers"].items():
            mine = seen["numbers"][what]
            if len(mine) != len(right):
                return f"{what}: {len(mine)} numbers; expected {len(right)}."
            for a, b in zip(mine, right, strict=True):
                if not abs(a - b) <= SAME * (abs(b) + 1e-6):
                    return f"{what}: {a:.6g}; the healthy code computes {b:.6g}. A cure computes the same numbers."
        for what, right in expected["tensors"].items():
            if wrong := _another(seen["tensors"][what], right):
                return f"{what} {wrong}. A cure computes the same numbers."
        if not seen["peak"] <= ROOM * expected["peak"]:
            held, enough = (n / 2**20 for n in (seen["peak"], expected["peak"]))
            return f"{MORE} {held:.1f} MiB at the peak, in {seen['at']}; healthy code needs {enough:.1f}."
        return None


@contextlib.contextmanager
def _types_of_outputs() -> Iterator[set[str]]:
    """Note the types of the floating-point outputs of all modules that run."""
    types: set[str] = set()

    def see(module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.is_floating_point():
            types.add(str(output.dtype))

    handle = register_module_forward_hook(see)
    try:
        yield types
    finally:
        handle.remove()


def _numbers(values: Any) -> list[float]:
    return [float(v.detach() if isinstance(v, Tensor) else v) for v in values]


def _measured(
    model: nn.Module, optimizer: Any, run: Callable[[], dict[str, Any]], tensors: Callable[[], dict[str, Tensor]] = dict
) -> Evidence:
    """Run a loop, which returns numbers by name, under the meter; compare the weights and `tensors()` afterwards."""
    with _types_of_outputs() as types, MemoryMeter(model, optimizer) as meter:
        returned = run()
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return {
        "peak": meter.peak_bytes,
        "numbers": {what: _numbers(values) for what, values in returned.items()},
        "tensors": {
            what: _along(tensor) for what, tensor in ({"The vector of all weights": weights} | tensors()).items()
        },
        "at": meter.peak_at,
        "types": sorted(types),
    }


def _most_rows(run: Callable[[], Any], columns: int) -> int:
    """Return the rows of the longest tensor of so many columns, or of their transpose, that an operation makes."""
    most = 0

    def see(func: Any, args: Any, kwargs: Any, result: Any) -> None:
        nonlocal most
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor) and columns in tensor.shape:
                most = max(most, tensor.numel() // columns)

    each_operation(run, see)
    return most


def _gpt(seed: int) -> tuple[SmallGPT, list[Tensor]]:
    torch.manual_seed(seed)
    device = pick_device()
    batches = [torch.randint(256, (8, 65), device=device) for _ in range(4)]
    return SmallGPT(context=64, layers=2, width=64).to(device), batches


class HistoryKeepsNoGraph(_Clinic):
    """The training loop returns its losses and holds one step's graph at a time."""

    hint = (
        "What does a loss in a list keep alive? Is the graph needed after backward()?\n"
        "`loss.detach()` has no graph. `retain_graph=True` keeps the saved tensors that backward() would free."
    )

    @staticmethod
    def probe(seed: int, train_and_log: Any) -> Evidence:
        model, batches = _gpt(seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)  # large, so that a step left out shows
        losses = []

        def run() -> dict[str, Any]:
            losses.extend(train_and_log(model, optimizer, batches))
            return {"the losses": losses}

        seen = _measured(model, optimizer, run)
        return seen | {"graphs": [n for n, loss in enumerate(losses, 1) if getattr(loss, "grad_fn", None) is not None]}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["graphs"]:
            return f"Loss {seen['graphs'][0]} still has a graph (grad_fn): the list keeps it. Append loss.detach()."
        wrong = _Clinic.judge(seen, expected)
        if wrong and wrong.startswith(MORE):
            return f"{wrong} Are two graphs alive at once? Check `retain_graph`, and which variables keep outputs."
        return wrong


class HeadInChunks(_Clinic):
    """The loss of a large vocabulary, forward and backward, without all logits at once."""

    hint = (
        "Rows are independent. How do you get the mean over all rows from the losses of chunks?\n"
        "Loop over chunks of rows. Checkpoint each chunk's logits and loss, so that only its inputs are saved.\n"
        'Use `F.cross_entropy(..., reduction="sum")` for each chunk, and divide once by the number of rows.\n'
        "If you write an autograd Function: its backward multiplies the saved gradients by the one it receives."
    )

    @staticmethod
    def probe(seed: int, head_loss: Any) -> Evidence:
        torch.manual_seed(seed)
        device = pick_device()
        head = nn.Linear(64, 4000, bias=False).to(device)
        rows = 1100  # not a multiple of 128, and eight equal chunks would be too large
        hidden = torch.randn(rows, 64, device=device, requires_grad=True)
        targets = torch.randint(4000, (rows,), device=device)
        loss = head_loss(head, hidden[:3], targets[:3])
        if not (isinstance(loss, Tensor) and loss.requires_grad and loss.numel() == 1):
            return {"returned": f"a tensor {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__}
        loss.backward()
        if without := [name for name, t in (("hidden", hidden), ("head.weight", head.weight)) if t.grad is None]:
            return {"without": without}
        hidden.grad = head.weight.grad = None

        def run() -> dict[str, Any]:
            loss = head_loss(head, hidden, targets)
            (UPSTREAM * loss).backward()
            return {"the loss": [loss]}

        def gradients() -> dict[str, Tensor]:
            return {"The gradient of hidden": hidden.grad, "The gradient of head.weight": head.weight.grad}

        seen = _measured(head, None, run, gradients)
        return seen | {"rows": _most_rows(lambda: head_loss(head, hidden, targets).backward(), 4000)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if "returned" in seen:
            return (
                f"head_loss returns {seen['returned']}; expected a scalar tensor with a graph, from which backward() "
                "can start. (Are rows left out?)"
            )
        if "without" in seen:
            return f"{seen['without'][0]} gets no gradient: an operation between it and the loss cuts the graph."
        wrong = _Clinic.judge(seen, expected)
        if wrong and wrong.startswith(MORE):
            most = f"One operation makes logits of {seen['rows']} rows at once, and the limit is 128"
            chunks = "No operation makes more than 128 rows of logits, so chunks are kept: is each one checkpointed"
            return f"{wrong} {f'{most}. Loop over chunks of rows.' if seen['rows'] > 128 else f'{chunks}?'}"
        if wrong is None and seen["rows"] > 128:
            return f"One operation makes logits of {seen['rows']} rows at once; the limit is 128."
        return wrong


class EvaluationKeepsNothing(_Clinic):
    """The evaluation returns the mean loss and keeps no graph."""

    hint = (
        "No backward() follows here. What keeps the activations alive?\n"
        "Put the loop under `torch.no_grad()`, so that autograd records no graph."
    )

    @staticmethod
    def probe(seed: int, evaluate: Any) -> Evidence:
        model, batches = _gpt(seed)
        batches.append(batches[0][:2])  # a smaller last one
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        modes, autograd, frozen = {}, {}, False
        for training in (False, True):
            model.train(training)
            with torch.set_grad_enabled(training):  # which puts autograd back afterwards
                seen = _measured(model, None, lambda: {"the mean loss": [evaluate(model, batches)]})
                autograd["on" if training else "off"] = torch.is_grad_enabled()
            frozen = frozen or not all(p.requires_grad for p in model.parameters())
            modes["training mode" if training else "evaluation mode"] = model.training
        cleared = not all(p.grad is not None and bool((p.grad == 1).all()) for p in model.parameters())
        return seen | {"modes": modes, "autograd": autograd, "frozen": frozen, "cleared": cleared}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for came, training in expected["modes"].items():
            if seen["modes"][came] != training:
                left = "evaluation mode" if training else "training mode"
                return f"The model was in {came} before your evaluation and is in {left} after it: restore the mode."
        if not seen["autograd"]["on"]:
            return "After your evaluation autograd is switched off: the next training step would fail."
        if seen["autograd"]["off"]:
            return "Autograd was off before your evaluation, and is on afterwards: leave it as you found it."
        if seen["cleared"]:
            return "The gradients of the model have changed: the evaluation leaves .grad as it is."
        if seen["frozen"]:
            return "After your evaluation parameters no longer require a gradient: the next training step would fail."
        wrong = _Clinic.judge(seen, expected)
        if wrong and wrong.startswith(MORE):
            return f"{wrong} Does autograd record the forward passes? Look at torch.no_grad()."
        return wrong


class OptimizerHasNoFullTemporaries(_Clinic):
    """Adam's update with the same numbers and without a second copy of all parameters."""

    hint = (
        "Look at the operation at the peak. How many parameters does it process at once?\n"
        "`torch.optim.Adam` has three implementations of the same update: for-loop, foreach and fused."
    )

    @staticmethod
    def probe(seed: int, make_optimizer: Any) -> Evidence:
        torch.manual_seed(seed)
        device = pick_device()
        model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(6))).to(device)
        x = torch.randn(4, 256, device=device)
        optimizer = make_optimizer(model.parameters())

        def run() -> dict[str, Any]:
            losses = []
            for _ in range(3):
                optimizer.zero_grad()
                loss = model(x).square().mean()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            return {"the losses": losses}

        how = {
            key: [group.get(key) for group in optimizer.param_groups] for key in ("foreach", "fused", "weight_decay")
        }
        adam = isinstance(optimizer, torch.optim.Adam)
        return _measured(model, optimizer, run) | how | {"kind": type(optimizer).__name__, "adam": adam}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        decays = [decay for decay in seen["weight_decay"] if decay not in expected["weight_decay"]]
        if seen["adam"] and decays:
            return f"weight_decay is {decays[0]}, which changes the updates."
        wrong = _Clinic.judge(seen, expected)
        if wrong and not seen["adam"]:
            return f"{seen['kind']} is not Adam. {wrong}"
        if wrong and wrong.startswith(MORE):
            return f"{wrong} Which implementation of Adam processes all parameters at once?"
        left_open = any(each is None and not fused for each, fused in zip(seen["foreach"], seen["fused"], strict=True))
        if wrong is None and seen["adam"] and left_open:
            return "foreach is left at its default; on a GPU that means foreach=True, which causes the peak."
        return wrong


def _around_hooks(model: nn.Module, register: Callable[[], Any]) -> list[str]:
    """Let `register` register hooks; return a list of the modules whose output they replace, filled as the model runs.

    The output is put back, so that the model runs to its end.
    """
    replaced: list[str] = []
    outputs: list[Tensor] = []  # of the module whose hooks are running

    def after(name: str) -> Callable[..., Tensor]:
        def put_back(module: nn.Module, inputs: Any, output: Any) -> Tensor:
            first = outputs.pop()
            if output is not first and name not in replaced:
                replaced.append(name)
            return first

        return put_back

    for module in model.modules():
        module.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    register()
    for name, module in model.named_modules():
        module.register_forward_hook(after(name))
    return replaced


class HookKeepsNoOutput(_Clinic):
    """The means of all outputs are logged, and the hook keeps no output alive."""

    hint = (
        "A hook that stores a tensor keeps it alive. Which number does the log need?\n"
        "`output.detach().mean()` has no graph and does not share memory with the output. Store nothing else."
    )

    @staticmethod
    def probe(seed: int, log_means: Any) -> Evidence:
        model, batches = _gpt(seed)
        model.requires_grad_(False)  # inference: nothing else should be held
        means: dict[str, Any] = {}
        missing: list[str] = []
        sizes: dict[str, int] = {}
        replaced: list[str] = []

        def run() -> dict[str, Any]:
            nonlocal replaced
            replaced = _around_hooks(model, lambda: log_means(model, means))
            for batch in batches:
                model(batch[:, :-1])
            leaves = [name for name, module in model.named_modules() if not list(module.children())]
            sizes.update({name: means[name].numel() if isinstance(means[name], Tensor) else 1 for name in means})
            missing.extend(name for name in leaves if sizes.get(name) != 1)
            return {f"the mean of {name}": [means[name]] for name in leaves if name not in missing}

        seen = _measured(model, None, run) | {"missing": missing, "sizes": sizes}
        seen["replaced"] = list(replaced)
        model.requires_grad_(True)
        model(batches[0][:, :-1])
        return seen | {"graphs": [name for name, mean in means.items() if getattr(mean, "grad_fn", None) is not None]}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["replaced"]:
            return (
                f"Your hook on {seen['replaced'][0]!r} returns a value. A forward hook that returns a value "
                "replaces the module's output: store the mean and return nothing."
            )
        for name in seen["missing"]:
            held = f"{seen['sizes'][name]:,} numbers" if name in seen["sizes"] else "nothing"
            return f"means[{name!r}] holds {held} after a forward pass; expected one number, the mean."
        if seen["graphs"]:
            return (
                f"In training, means[{seen['graphs'][0]!r}] has a graph (grad_fn), which keeps the activations of the "
                "whole forward pass: detach the output first."
            )
        wrong = _Clinic.judge(seen, expected)
        if wrong and wrong.startswith(MORE):
            return f"{wrong} Does the hook copy an output, or does something that outlives it refer to one?"
        return wrong


class GradientsMakeRoom(_Clinic):
    """Each step trains as before, and no gradient from the previous step is alive during a forward pass."""

    hint = (
        "Compare the two forward passes in the stage table. Which category is there in the second one only?\n"
        "`optimizer.zero_grad()` sets `.grad` to None and frees the memory. When is the earliest moment to call it?"
    )

    @staticmethod
    def probe(seed: int, train: Any) -> Evidence:
        torch.manual_seed(seed)
        device = pick_device()
        model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(6))).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)  # large, so that a missing step shows
        batches = [tuple(torch.randn(512, 512, device=device) for _ in range(2)) for _ in range(3)]
        return _measured(model, optimizer, lambda: {"the losses": list(train(model, optimizer, batches))})

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        wrong = _Clinic.judge(seen, expected)
        if wrong and wrong.startswith(MORE):
            return f"{wrong} Are gradients of the last step alive during the forward pass?"
        return wrong
