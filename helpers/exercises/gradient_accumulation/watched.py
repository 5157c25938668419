"""What both loops are judged by: what the model was fed and when, what was left in .grad, and what stays in memory."""

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...meter.recorder import MemoryMeter
from ..base import Check, Evidence
from ..probing.distance import relative_distance
from ..probing.returned_loss import EXACT, number, wrong_loss

Answer = Callable[[nn.Module, Tensor, Tensor, int], Any]
LEFT_BEFORE = 0.5  # what stands in each .grad before the answer is called, where that is looked at
FEW, MANY = 4, 12  # micro-batches whose peaks are compared
DEPTH = 12  # layers of the model whose peak is measured
TWO_GRAPHS = 0.5  # of a micro-batch's graph: with so much more than the reference holds, a second one is there
KEEPS = 0.5  # of a micro-batch's logits: room for a loss for each row and for copies of inputs, but not for outputs


class _Mark:
    """Hangs on a graph, and lives as long as it does."""


class _Watched:
    """Notes the rows of each forward call of `model`, the order of the passes, and the graphs that stay."""

    def __init__(self, model: nn.Module) -> None:
        self.rows: list[list[float]] = []  # of each call, a sum of each row's numbers that tells rows apart
        self.order: list[str] = []
        self.graphs = 0  # the most graphs of earlier calls that were alive when a call began
        self._marks: list[weakref.ref[_Mark]] = []
        model.register_forward_pre_hook(self._count)
        model.register_forward_hook(self._forward)

    def _count(self, *_: Any) -> None:
        self.graphs = max(self.graphs, sum(mark() is not None for mark in self._marks))

    def _forward(self, _: nn.Module, args: tuple[Tensor, ...], outputs: Tensor) -> None:
        numbers = args[0].detach().flatten(1).double()
        self.rows.append((numbers @ torch.arange(1.0, numbers.shape[1] + 1, dtype=numbers.dtype)).tolist())
        self.order.append("forward")
        if outputs.requires_grad:
            mark = _Mark()
            self._marks.append(weakref.ref(mark))
            outputs.register_hook(lambda gradient, mark=mark: self.order.append("backward"))


def accumulated(
    model: nn.Module, batch: tuple[Tensor, Tensor], micro_batch: int, answer: Answer, before: float | None = None
) -> Evidence:
    """Accumulate over `batch`; return what was left in .grad, what was watched, and what was returned.

    Args:
        before: what stands in all of .grad before; None: there are no gradients.
    """
    model.eval()  # nothing in these models depends on the mode, and an answer has no reason to change it
    watched = _Watched(model)
    for p in model.parameters():
        p.grad = None if before is None else torch.full_like(p, before)
    things = {"weights": list(model.parameters()), "inputs": batch[:1], "targets": batch[1:]}
    copies = {name: [t.detach().clone() for t in tensors] for name, tensors in things.items()}
    loss = number(answer(model, *batch, micro_batch))
    changed = [name for name, tensors in things.items() if not all(map(torch.equal, tensors, copies[name]))]
    changed += ["mode"] * model.training
    return {
        "gradient": gradient_of(model),
        "loss": loss,
        "rows": watched.rows,
        "order": watched.order,
        "graphs": watched.graphs,
        "changed": changed,
    }


def peaks(make: Callable[[int], tuple[nn.Module, tuple[Tensor, Tensor]]], micro_batch: int, answer: Answer) -> Evidence:
    """Return the peak of many micro-batches, what each adds to it, and the bytes of one's logits and of its graph.

    Args:
        make: returns a model and a batch of so many rows.
    """
    found = []
    for micro_batches in (FEW, MANY):
        model, batch = make(micro_batches * micro_batch)
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        with MemoryMeter(model, by_category=False) as meter:
            answer(model, *batch, micro_batch)
        found.append(meter.peak_bytes)
    each = (found[1] - found[0]) / (MANY - FEW)
    return {"each": each, "peak": found[1]} | _sizes_of(model, batch[0][:micro_batch])


def _sizes_of(model: nn.Module, inputs: Tensor) -> Evidence:
    """Return the bytes of the logits of `inputs`, and of what autograd saves for them beside the weights."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved: dict[int, Tensor] = {}  # by address; the tensors stay alive, so that no address is used twice

    def note(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor.detach()  # an operation that saves its own output would otherwise keep it alive

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        logits = model(inputs)
    graph = sum(t.untyped_storage().nbytes() for place, t in saved.items() if place not in weights)
    return {"logits": logits.nbytes, "graph": graph}


def deep(first: nn.Module, width: int, last: nn.Module) -> nn.Module:
    """Return a model in FP64 whose saved activations take many times the bytes of its logits."""
    between = [layer for _ in range(DEPTH) for layer in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(first, *between, last).double()


def gradient_of(model: nn.Module) -> list[float]:
    """Return all gradients of `model` as one list; zeros where there is none."""
    found = (torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters())
    return torch.cat([gradient.flatten() for gradient in found]).tolist()


def _wrong_gradient(seen: list[float], right: list[float], mistakes: Mapping[str, list[float]]) -> str | None:
    """Say how a gradient differs from the right one: as one of the `mistakes` does, in length alone, or in direction.

    Args:
        mistakes: by what to say of it, the gradient that a well-known mistake leaves.
    """
    if relative_distance(seen, right) <= EXACT:
        return None
    for name, gradient in mistakes.items():
        if relative_distance(seen, gradient) <= EXACT:
            return name
    mine, want = torch.tensor(seen), torch.tensor(right)
    if not mine.isfinite().all():
        return "the gradient contains NaN or infinity. Is something divided by a count of 0?"
    if not mine.any():
        return "no gradient was left in .grad. Is backward() called for each micro-batch?"
    length, cosine = (mine.norm() / want.norm()).item(), torch.cosine_similarity(mine, want, dim=0).item()
    if cosine > 0.9999:
        return (
            f"the gradient has the right direction, but {length:.4g} times the norm of the whole batch's. Look at what "
            "each micro-batch's loss is divided by."
        )
    return (
        f"the gradient differs from the whole batch's: cosine {cosine:.4f}, {length_in_words(length)}. Look at the "
        "weight of each micro-batch, and at what is left out."
    )


def length_in_words(ratio: float) -> str:
    """Compare a length with another one, to the digits that are shown."""
    return "the same length" if f"{ratio:.4g}" == "1" else f"{ratio:.4g} times as long"


def cases(evidence: Evidence, *kinds: str) -> Iterator[tuple[str, str]]:
    """Yield (kind, case) of the runs of some kinds; of all but the empty ones if none is named.

    A micro-batch in which nothing counts is empty, and an answer may skip it.
    """
    for kind, runs in evidence["runs"].items():
        if kind in kinds or (not kinds and kind != "empty"):
            yield from ((kind, case) for case in runs)


def wrong_gradients(seen: Evidence, expected: Evidence, kind: str) -> str | None:
    """Compare the gradients of the cases of one kind with those of the whole batch."""
    for _, case in cases(expected, kind):
        mine, whole = seen["runs"][kind][case]["gradient"], expected["whole"][case]
        if wrong := _wrong_gradient(mine, whole["gradient"], whole["mistakes"]):
            return f"{case}: {wrong}"
    return None


class Feeds(Check):
    """Compares the rows of each call of the model."""

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for kind, case in cases(expected):
            mine, right = (evidence["runs"][kind][case]["rows"] for evidence in (seen, expected))
            sizes = [len(rows) for rows in mine]
            if sizes != [len(rows) for rows in right]:
                return f"{case}: the model was called with {sizes} rows; expected {[len(rows) for rows in right]}."
            if mine != right:
                return f"{case}: the rows come in a different order than in the batch."
        return None


class Frees(Check):
    """Looks at the order of the passes, and at memory that grows with the number of micro-batches."""

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for kind, case in cases(expected):
            alive = most = 0
            for event in seen["runs"][kind][case]["order"]:
                alive += 1 if event == "forward" else -1
                most = max(most, alive)
            if most > 1:
                return (
                    f"{case}: {most} forward passes had run before the backward pass of the first of them. Call "
                    "backward() inside the loop."
                )
            if alive:
                return f"{case}: {alive} forward passes were not followed by a backward pass."
            if (graphs := seen["runs"][kind][case]["graphs"]) > 1:  # one: the variables of the micro-batch before
                return (
                    f"{case}: the graphs of {graphs} earlier micro-batches still exist when a forward pass begins. "
                    "Does a list, or a sum, keep losses that are not detached?"
                )
        each, logits = seen["peaks"]["each"], expected["peaks"]["logits"]
        if not each <= KEEPS * logits:
            return (
                f"The peak grows by {each / 1024:.1f} KiB with each additional micro-batch, whose logits take "
                f"{logits / 1024:.1f} KiB. What is kept of each: its graph (`retain_graph=True`, a loss that is not "
                "detached), or its outputs?"
            )
        more, graph = seen["peaks"]["peak"] - expected["peaks"]["peak"], expected["peaks"]["graph"]
        if not more <= TWO_GRAPHS * graph:
            return (
                f"The peak is {more / 1024:.0f} KiB higher than it needs to be, and the graph of a micro-batch takes "
                f"{graph / 1024:.0f} KiB. Is the last one's graph still there when the next forward pass runs? A "
                "backward pass frees it, except with `retain_graph=True`."
            )
        return None


class Adds(Check):
    """Compares gradients that were there before with those that were not."""

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        both = (torch.tensor(seen[name], dtype=torch.float64) for name in ("added to", "added to nothing"))
        left = next(both) - next(both)
        if (left - LEFT_BEFORE).abs().max() <= 1e-4:
            return None
        if left.abs().max() < 1e-4:
            return f"All gradients were {LEFT_BEFORE} before the call, and none of that is left: they were cleared."
        low, high = f"{left.min():.3g}", f"{left.max():.3g}"
        rest = f"{low} is" if low == high else f"between {low} and {high} is"
        return (
            f"All gradients were {LEFT_BEFORE} before the call; of that, {rest} left. Let "
            "backward() add to .grad, and change it in no other way."
        )


class ReturnsALoss(Check):
    """Compares what was returned with the mean loss."""

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for kind, case in cases(expected, *expected["runs"]):
            if wrong := wrong_loss(seen["runs"][kind][case]["loss"], expected["whole"][case]["loss"]):
                return f"{case}: {wrong}"
        return None


class Leaves(Check):
    """Looks at what the answer was given."""

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for kind, case in cases(expected, *expected["runs"]):
            if changed := seen["runs"][kind][case]["changed"]:
                return f"{case}: the {' and '.join(changed)} had changed after the call. Only .grad should."
        return None
