"""Checks of an autocast written by hand: which operations it casts for, which arguments, and that gradients come back.

Operations are probed by the dtypes and the values of their results. No probe inspects how the casts are made.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..base import Check, Evidence
from ..probing.distance import relative_distance

Mode = Callable[[torch.dtype], Any]
Operations = dict[str, Callable[[], Tensor]]
HALVES = {"BF16": torch.bfloat16, "FP16": torch.float16}
SAME = 1e-4  # relative; inputs that are not rounded to 16 bits change a result by more
CHANGED = (
    "Your function changes the tensors that it is given, so later calls get rounded inputs. `value.to(dtype)` makes a "
    "copy and leaves the original alone; assigning to `.data` does not."
)
SILENT = "Your `__torch_function__` returns nothing: return what `func` returns."


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _unless_refused(operation: Callable[[], Any]) -> Any:
    """Return the result of `operation`; None if PyTorch does not accept the dtypes of its inputs."""
    try:
        return operation()
    except NotImplementedError:  # a RuntimeError, too: the answer has not been attempted
        raise
    except RuntimeError:
        return None


def _random(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# -- what is run in the region


def _low_precision(seed: int, half: torch.dtype) -> Operations:
    """Return operations in LOW_PRECISION, with inputs of every floating-point dtype, by place and by keyword."""
    x, w, bias = _random(seed, 2, 1, 8, 8), _random(seed + 1, 3, 1, 3, 3), _random(seed + 2, 3)
    square = x[0, 0]
    (other,) = set(HALVES.values()) - {half}
    return {
        "linear": lambda: F.linear(x, square, square[0]),
        "linear with keywords": lambda: F.linear(x, weight=square, bias=square[0]),
        "linear of a 16-bit input": lambda: F.linear(x.to(half), square),
        "linear of an input in the other 16-bit dtype": lambda: F.linear(x.to(other), square),
        "linear of FP64": lambda: F.linear(x.double(), square.double()),
        "convolution": lambda: F.conv2d(x, w, padding=1),
        "convolution with all arguments positional": lambda: F.conv2d(x, w, bias, 1, 1),
        "matmul with @": lambda: square @ square,
        "torch.matmul": lambda: torch.matmul(square, square),
        "Tensor.matmul": lambda: square.matmul(square),
        "attention": lambda: F.scaled_dot_product_attention(x, x, x),
        "attention with a mask of numbers": lambda: F.scaled_dot_product_attention(x, x, x, attn_mask=square),
    }


def _losses(seed: int, half: torch.dtype) -> Operations:
    """Return operations in LOSSES, with inputs in 16 bits and in FP64."""
    narrow = (4 * _random(seed, 64, 500)).to(half)
    target = torch.arange(64) * 7
    weight = _random(seed + 1, 500).abs()
    return {
        "cross entropy": lambda: F.cross_entropy(narrow, target),
        "cross entropy with weight=": lambda: F.cross_entropy(narrow, target, weight=weight.to(half)),
        "cross entropy of FP64": lambda: F.cross_entropy(narrow.double(), target),
        "squared error": lambda: F.mse_loss(narrow, target=narrow.roll(1)),
    }


def _others(seed: int, half: torch.dtype) -> Operations:
    """Return operations in neither list, some of them with names like those in the lists."""
    x = _random(seed, 4, 8)
    narrow = x.to(half)
    return {
        "relu of FP32": lambda: torch.relu(x),
        "relu of 16 bits": lambda: torch.relu(narrow),
        "layer norm of FP32": lambda: F.layer_norm(x, (8,)),
        "layer norm of 16 bits": lambda: F.layer_norm(narrow, (8,)),
        "16 bits + FP32": lambda: narrow + x,
        "softmax of 16 bits": lambda: torch.softmax(narrow, dim=-1),
        "embedding of FP32": lambda: F.embedding(torch.tensor([1, 2]), x),
        "torch.mm of FP32": lambda: torch.mm(x, x.T),
        "l1_loss of 16 bits": lambda: F.l1_loss(narrow, narrow.roll(1)),
    }


def _no_floats(seed: int) -> Operations:
    """Return operations of which some arguments are masks, class indices or Python numbers."""
    x, logits = _random(seed, 1, 2, 6, 4), _random(seed, 5, 300)
    mask = _random(seed + 1, 6, 6) < 0
    mask |= torch.eye(6, dtype=torch.bool)  # at least one key each
    classes = torch.tensor([299, 258, 257, 1, 0])
    return {
        "attention with a mask of True and False": lambda: F.scaled_dot_product_attention(
            x, x, x, attn_mask=mask, scale=0.3
        ),
        "cross entropy with label_smoothing": lambda: F.cross_entropy(logits, classes, label_smoothing=0.1),
    }


# -- what is measured


def _results(region: Any, operations: Operations) -> Evidence:
    """Return dtype and values of each operation in the region; "refused" where PyTorch does not accept the dtypes."""
    seen: Evidence = {}
    for case, operation in operations.items():
        with region:
            result = _unless_refused(operation)
        seen[case] = ["refused", []] if result is None else [_name(result.dtype), result.double().flatten().tolist()]
    return seen


def _gradients(seed: int, autocast: Mode) -> Evidence | None:
    """Train a weight with one step, which changes it, and use it before and after; None where PyTorch refuses."""
    weight, x = nn.Parameter(_random(seed, 6, 8)), _random(seed + 1, 5, 8).requires_grad_()
    before = weight.detach().clone()
    mode = autocast(torch.bfloat16)

    def sizes() -> list[float]:
        """Return the size of a result in the region that was used before, and in a new one."""
        seen = []
        for region in (mode, autocast(torch.bfloat16)):
            with region:
                seen.append(F.linear(x, weight).float().norm().item())
        return seen

    def loss() -> Tensor:
        with mode:
            return F.mse_loss(F.linear(x, weight), torch.ones(5, 6))

    first, value = _unless_refused(sizes), _unless_refused(loss)
    if first is None or value is None:
        return None
    if value.requires_grad:
        (3 * value).backward()
    dtype, changed = _name(weight.dtype), not torch.equal(before, weight.detach().float())
    with torch.no_grad():
        weight *= 3
    gradients = {
        name: None if leaf.grad is None else leaf.grad.flatten().tolist()
        for name, leaf in (("weight", weight), ("input", x))
    }
    grown = [after / size for size, after in zip(first, sizes(), strict=True)]
    return {"gradients": gradients, "dtype": dtype, "changed": changed, "grown": grown}


def _changes_inputs(seed: int, autocast: Mode) -> bool:
    """Whether a matmul or a loss leaves another dtype or other values in the tensors that it gets."""
    given = [_random(seed, 4, 4), _random(seed + 1, 4, 4).bfloat16()]
    before = [tensor.clone() for tensor in given]
    for operation in (F.linear, F.mse_loss):
        with autocast(torch.bfloat16):
            _unless_refused(lambda operation=operation: operation(*given))
    return not all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(given, before, strict=True))


def _returns_nothing(autocast: Mode) -> bool:
    """Whether a function returns None in the region, one that is in LOW_PRECISION or one that is in neither list."""
    x = torch.ones(4, 4)
    for operation in (lambda: torch.relu(x), lambda: F.linear(x, x)):
        refused = object()
        with autocast(torch.bfloat16):
            try:
                result = operation()
            except NotImplementedError:
                raise
            except RuntimeError:
                result = refused
        if result is None:
            return True
    return False


def observe(seed: int, autocast: Mode) -> Evidence:
    """Run every operation in a region for BF16 and in one for FP16, and a training step."""
    if _returns_nothing(autocast):
        return {"silent": True}
    changes = _changes_inputs(seed, autocast)
    seen: Evidence = {"silent": False, "changes inputs": changes, "low precision": {}, "losses": {}, "others": {}}
    for name, half in HALVES.items():
        for clause, operations in (
            ("low precision", _low_precision(seed, half)),
            ("losses", _losses(seed, half)),
            ("others", _others(seed, half)),
        ):
            results = _results(autocast(half), operations)
            seen[clause] |= {f"{case}, in a region for {name}": result for case, result in results.items()}
    seen["no floats"] = _results(autocast(torch.bfloat16), _no_floats(seed))
    return seen | {"training": _gradients(seed, autocast)}


# -- what is wrong


def _wrong(seen: Evidence, expected: Evidence, clause: str, why: str, values: str, same: float = SAME) -> str | None:
    """Say which result of a clause has another dtype, or the right one and other values."""
    if seen["changes inputs"] and _wrong(seen | {"changes inputs": False}, expected, clause, why, values, same):
        return CHANGED
    for case, (wanted, right) in expected[clause].items():
        dtype, mine = seen[clause][case]
        if dtype == "refused":
            return f"{case}: PyTorch refuses the dtypes that arrive. {why}"
        if dtype != wanted:
            return f"{case}: the result is in {dtype}; it should be in {wanted}. {why}"
        if not (off := relative_distance(mine, right)) <= same:
            return f"{case}: the result is in {dtype}, with a relative error of {off:.1g}. {values}"
    return None


class CastsToLowPrecision(Check):
    """Functions in LOW_PRECISION return 16-bit results, whatever tensors they get, positional or keyword."""

    hint = (
        "`func` is the operation itself: is it in `LOW_PRECISION`?\n"
        "Cast the tensors in `args` and those in `kwargs`, then call `func` with the new ones.\n"
        "The dtype to cast to is `self.dtype`; the same mode must work for FP16."
    )
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["silent"]:
            return SILENT
        wrong = [c for c, (dtype, _) in expected["low precision"].items() if seen["low precision"][c][0] != dtype]
        if wrong and seen["changes inputs"]:
            return CHANGED
        if wrong and all("keywords" in case or "a mask of numbers" in case for case in wrong):
            return f"Only calls with keyword tensors are wrong ({wrong[0]}): cast the tensors in `kwargs`, too."
        if wrong and all("the other 16-bit dtype" in case or "FP64" in case for case in wrong):
            return f"{wrong[0]}: FP32 is cast, and other dtypes are not. Cast every tensor that `is_floating_point()`."
        if wrong and all(case.endswith("FP16") for case in wrong):
            return "Everything is right for BF16 and wrong for FP16: cast to `self.dtype`."
        low, right = seen["low precision"], expected["low precision"]
        wrong = [c for c, (_, values) in right.items() if not relative_distance(low[c][1], values) <= SAME]
        if wrong and all("a mask of numbers" in case for case in wrong):
            return f"Only {wrong[0]} is wrong. A mask of floating-point numbers is cast like any other input."
        why = "It is in LOW_PRECISION: cast every floating-point tensor that goes in."
        return _wrong(
            seen, expected, "low precision", why, "Cast what goes in, before the operation; not what comes out."
        )


class LossesAreInFp32(Check):
    """Functions in LOSSES compute in FP32, even with 16-bit inputs."""

    hint = "For these the target is `torch.float32`. Cast before the operation: after it, the digits are lost."
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["silent"]:
            return SILENT
        why = (
            "It is in LOSSES: cast every floating-point tensor that goes in, in `args` and in `kwargs`, and no other: "
            "class indices stay integers."
        )
        return _wrong(
            seen, expected, "losses", why, "It was computed in 16 bits. Cast what goes in, not what comes out."
        )


class OthersFollow(Check):
    """All other operations run as if the mode were not there."""

    hint = "For an operation that is in neither list: `return func(*args, **kwargs)`, and nothing else."
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["silent"]:
            return SILENT
        return _wrong(
            seen,
            expected,
            "others",
            "It is in neither list: pass its arguments on as they are.",
            "Return its own result.",
        )


class CastsOnlyFloatingPoint(Check):
    """Integers, Boolean masks and non-tensor arguments reach the operation as they are."""

    hint = (
        "`isinstance(value, torch.Tensor) and value.is_floating_point()`: do not cast a class index or a Boolean mask."
    )
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["silent"]:
            return SILENT
        why = "Was a mask cast, or a class index?"
        return _wrong(seen, expected, "no floats", why, f"{why} Do all keywords arrive, numbers as well?", same=0.02)


class GradientsComeBack(Check):
    """Weights stay FP32 and unchanged, and get FP32 gradients: autograd records the casts."""

    hint = (
        "`value.to(dtype)` is recorded by autograd. `.data`, `.detach()` and `no_grad` cut the graph.\n"
        "An optimizer changes weights in place between two regions: a copy from an earlier call is out of date."
    )
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["silent"]:
            return SILENT
        if (training := seen["training"]) is None:
            return "PyTorch refuses the dtypes that arrive at `F.linear` or at `F.mse_loss`: see the checks above."
        if training["dtype"] != "float32" or training["changed"]:
            return "The weight itself has been cast or changed. Cast a copy: `weight.to(dtype)` makes one."
        for name, wanted in expected["training"]["gradients"].items():
            if (mine := training["gradients"][name]) is None:
                return f"No gradient reaches the {name}: autograd did not record some operation along the way."
            if not (off := relative_distance(mine, wanted)) <= 0.02:
                return (
                    f"The gradient of the {name} is off by {off:.0%}. Cast each input once, and change it in no other "
                    "way."
                )
        regions = ("the same `Autocast` object is entered again", "a new `Autocast` object is entered")
        for grown, region in zip(training["grown"], regions, strict=True):
            if not abs(grown - 3) <= 0.02:
                return (
                    f"A weight is multiplied by 3 after a region has ended. When {region}, F.linear's result should be "
                    f"3 times as large as before; it is {grown:.3g} times as large as before. Is a cast from the "
                    "earlier region still in use?"
                )
        return None


AUTOCAST = (CastsToLowPrecision, LossesAreInFp32, OthersFollow, CastsOnlyFloatingPoint, GradientsComeBack)
