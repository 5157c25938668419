"""Values that do not exist: what stands in for them, so that a usual program goes on.

A loss is finite and falls; gradients are finite; a mask that nothing is known of is true everywhere; tokens spread
evenly over experts. Little facts about hollow tensors travel with them: the mean of their values, and among how many
choices their indices pick. `x != x` is nowhere true, an index among 8 experts equals a given one in 1 of 8 places, and
a mask with a mean of 1/8 selects an eighth of the rows.
"""

import itertools
import linecache
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .hollow import give_hint, hint, is_hollow
from .homes import storage_of

aten = torch.ops.aten
_PICKS = {"topk", "argmax", "argmin", "multinomial", "sort", "argsort", "max", "min"}
_KEEPS = {"any", "all", "clone", "_to_copy", "mean", "amax", "amin", "max", "min", "sum", "contiguous"}
_KEEPS_CHOICES = {"clone", "_to_copy", "sort", "cat", "stack", "gather", "index", "index_select"}
_SHIFTS = {"add", "sub"}
_SAME = {"clone", "_to_copy", "contiguous"}
_FEW = 64  # numbers in a tensor of which each is known or not for itself
_FINITE = {"isnan": 0.0, "isinf": 0.0, "isposinf": 0.0, "isneginf": 0.0, "isfinite": 1.0}
steps = 0  # optimizer steps so far: losses fall with them
_PATIENCE = 100  # times that a line gets the same answer, before a loop that waits for the other one gets that
_LBFGS = "torch/optim/lbfgs.py"
_LBFGS_GOES_ON = ("ys >", "c2 *")  # conditions under which it keeps a direction and ends a line search; others end it
_NEAR = 12  # frames between a line that asks and here
_asked: Counter[str] = Counter()  # line -> how often it has asked whether something unknown is true
_script: list[bool] = []  # the answers that are known beforehand, the next one first


def number(tensor: Tensor) -> float | int | bool:
    """Return the stand-in for the value of a tensor with one element."""
    parts = _parts_of(tensor) if tensor.numel() == 1 else [None]
    mean = hint(tensor, "mean") if parts[0] is None else parts[0]
    if tensor.dtype is torch.bool:
        return True if mean is None else mean > 0
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return 1.0 / (1 + steps) if mean is None else float(mean)
    return 0 if mean is None else round(mean)


def in_words(value: float | int | bool) -> str:
    """Return a stand-in as a report prints it."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def forget() -> None:
    """Begin a run."""
    global steps
    steps = 0
    _asked.clear()


@contextmanager
def scripted(answers: Sequence[bool]) -> Iterator[None]:
    """Give these answers, in turn, to code that asks whether something unknown is true."""
    _script[:] = answers
    try:
        yield
    finally:
        _script.clear()


def decided(tensor: Tensor, line: str) -> float | int | bool:
    """Return the stand-in for a value by which the program decides what comes next: loops end.

    Args:
        tensor: with one element.
        line: of the program.
    """
    asks = _line_of_lbfgs()
    if asks and tensor.dtype is torch.bool:
        return any(word in asks for word in _LBFGS_GOES_ON)
    if asks and tensor.dtype.is_floating_point:
        _asked[_LBFGS] += 1
        return 1.0 / (1 + steps + _asked[_LBFGS])
    if tensor.dtype is not torch.bool or hint(tensor, "mean") is not None:
        return number(tensor)
    if _script:
        return _script.pop(0)
    _asked[line] += 1
    return _asked[line] % (_PATIENCE + 1) != 0


def _line_of_lbfgs() -> str:
    """Return the line of `torch.optim.LBFGS` that asks for a value; "" where something else asks."""
    frame = sys._getframe(2)
    for _ in range(_NEAR):
        if frame is None:
            break
        if frame.f_code.co_filename.replace("\\", "/").endswith(_LBFGS):
            return linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return ""


def fill(tensor: Tensor, source: Tensor) -> Tensor:
    """Write stand-ins for the values of the hollow `source` into `tensor`, which is to have data; return it."""
    storage_of(tensor).made_up = True
    if hint(source, "parts"):
        parts = [number(source) if part is None else part for part in _parts_of(source)]
        return tensor.copy_(torch.tensor(parts, dtype=tensor.dtype).view(tensor.shape))
    mean = hint(source, "mean")
    if mean is None or tensor.dtype.is_floating_point or tensor.dtype is torch.bool or tensor.numel() < 2:
        return tensor.fill_(number(source))
    ends = [round(mean * i) for i in range(tensor.numel() + 1)]  # whole numbers with this mean
    parts = [after - before for before, after in itertools.pairwise(ends)]
    return tensor.copy_(torch.tensor(parts, dtype=tensor.dtype).view(tensor.shape))


def selected(mask: Tensor) -> int:
    """Return how many elements of a tensor are not zero: of a hollow one, how many are assumed to be so."""
    if not is_hollow(mask):
        return int(mask.count_nonzero())
    mean = hint(mask, "mean")
    return mask.numel() if mean is None else round(min(1.0, max(0.0, mean)) * mask.numel())


def places(mask: Tensor) -> Tensor:
    """Return the stand-in for `mask.nonzero()`: rows of places, evenly spread. Its shape is (selected, mask.dim())."""
    count = selected(mask)
    flat = torch.arange(count) * mask.numel() // max(1, count)
    if not mask.dim():
        return torch.empty(count, 0, dtype=torch.int64)
    return torch.stack(torch.unravel_index(flat, mask.shape), 1)


def learn(name: str, args: Any, result: Any) -> None:
    """Work out what is known of the results of an operation from what is known of its arguments."""
    outputs = result if isinstance(result, (list, tuple)) else [result]
    outputs = [output for output in outputs if isinstance(output, Tensor) and is_hollow(output)]
    if not outputs or not args:
        return
    if name in _PICKS:
        _learn_choices(name, args, outputs)
    if name == "clamp" and len(args) == 3 and all(map(_is_whole, args[1:])):  # a level of a feature pyramid, say
        give_hint(outputs[0], "choices", int(args[2] - args[1]) + 1)
    tensors = [value for value in args[:2] if isinstance(value, Tensor)]
    if tensors and (name in _KEEPS_CHOICES or (name in _SHIFTS and len(tensors) == 1)):
        give_hint(outputs[0], "choices", hint(tensors[0], "choices"))
    give_hint(outputs[0], "mean", _mean(name, args, tensors, outputs[0]))
    if name in ("stack", "cat", *_SAME) and outputs[0].numel() <= _FEW:
        parts = [part for tensor in (args[0] if name not in _SAME else args[:1]) for part in _parts_of(tensor)]
        if len(parts) == outputs[0].numel() and any(part is not None for part in parts):
            give_hint(outputs[0], "parts", parts)


def _is_whole(bound: Any) -> bool:
    return isinstance(bound, (int, float)) and math.isfinite(bound) and bound == int(bound)


def _parts_of(tensor: Tensor) -> list[float | None]:
    """Return the value of each of a few numbers; None where it is unknown."""
    if not is_hollow(tensor):
        return [float(value) for value in tensor.flatten()] if tensor.numel() <= _FEW else []
    parts = hint(tensor, "parts")
    if parts is None or not tensor.is_contiguous():
        return [None] * min(tensor.numel(), _FEW)
    start = int(tensor.storage_offset())
    return list(parts[start : start + tensor.numel()])


def _learn_choices(name: str, args: Any, outputs: list[Tensor]) -> None:
    """Note among how many an index picks: as many as the dimension is long that was searched."""
    dims = [value for value in args[1:] if isinstance(value, int)]
    dim = (dims[-1] if name == "topk" and len(dims) > 1 else -1 if name in ("topk", "multinomial") else dims[:1]) or -1
    dim = dim[0] if isinstance(dim, list) else dim
    for output in outputs:
        if not output.dtype.is_floating_point and args[0].dim():
            give_hint(output, "choices", args[0].shape[dim])


def _mean(name: str, args: Any, tensors: list[Tensor], output: Tensor) -> float | None:
    """Return the mean of a result, if it is known."""
    other = args[1] if len(args) > 1 else None
    if name in _FINITE:
        return _FINITE[name]
    if name == "_is_all_true":  # by which torch.distributions checks its parameters
        return 1.0
    if name in ("scatter", "scatter_") and hint(args[2], "choices"):
        return 1 / args[0].shape[args[1]]  # a one-hot row has a single place
    if name in ("eq", "ne") and tensors:
        share = _share_equal(tensors, other)
        return share if share is None or name == "eq" else 1 - share
    means = [_mean_of(tensor) for tensor in tensors]
    if not means or None in means:
        return None
    first, last = means[0], means[-1]
    if name in _KEEPS:
        return first * tensors[0].numel() / max(1, output.numel()) if name == "sum" else first
    if name in ("logical_not", "bitwise_not"):
        return 1 - first
    if name in ("mul", "logical_and", "bitwise_and") and len(means) == 2:
        return first * last
    if name in ("logical_or", "bitwise_or", "add") and len(means) == 2:
        return min(1.0, first + last) if output.dtype is torch.bool else first + last
    if name in ("gt", "ge", "lt", "le") and isinstance(other, (int, float)):
        compared = {"gt": first > other, "ge": first >= other, "lt": first < other, "le": first <= other}
        return float(compared[name])
    return None


def _share_equal(tensors: list[Tensor], other: Any) -> float | None:
    """Return in which share of the places two operands are equal: nothing is infinite or not a number."""
    if len(tensors) == 2 and tensors[0] is tensors[1]:
        return 1.0
    if isinstance(other, float) and math.isinf(other):
        return 0.0
    choices = next((found for tensor in tensors if (found := hint(tensor, "choices"))), None)
    return 1 / choices if choices else None


def _mean_of(tensor: Tensor) -> float | None:
    if is_hollow(tensor):
        return hint(tensor, "mean")
    if tensor.is_meta or tensor.is_complex() or not 0 < tensor.numel() <= 2**16:
        return None
    return float(tensor.float().mean())
