"""Checks of the mode that notes where 16-bit tensors become FP32: what it notes, leaves out, and changes."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ..base import Check, Evidence

Mode = Callable[[], Any]
Operations = dict[str, tuple[Callable[[], object], ...]]


def _widens(wide: torch.Tensor) -> Operations:
    """Return operations that each get a 16-bit floating-point tensor and return FP32."""
    bf16, fp16 = wide.bfloat16(), wide.half()
    weight, room = nn.Parameter(bf16.clone()), wide.clone()
    return {
        "BF16 + FP32": (lambda: bf16 + wide,),
        "FP32 * BF16": (lambda: wide * bf16,),
        "float() of FP16": (fp16.float,),
        "a keyword": (lambda: torch.add(wide, other=bf16),),
        "a parameter in BF16": (weight.float,),
        "a sum of BF16 in FP32": (lambda: torch.sum(bf16, dtype=torch.float32),),
        "in place": (lambda: room.copy_(bf16),),
        "four, one after the other": (
            lambda: bf16 + wide,
            bf16.float,
            lambda: bf16 + wide,
            lambda: fp16 * wide,
        ),
    }


def _does_not_widen(wide: torch.Tensor) -> Operations:
    """Return operations that are none of these."""
    narrow = wide.bfloat16()
    across = narrow.T
    return {
        "FP32 to FP32": (lambda: torch.relu(wide), lambda: F.layer_norm(wide, (4,))),
        "BF16 to BF16": (lambda: torch.relu(narrow), lambda: narrow @ across),
        "FP32 to BF16": (wide.bfloat16,),
        "BF16 to FP64": (narrow.double,),
        "int16 to FP32": (torch.arange(3, dtype=torch.int16).float,),
        "a size": (narrow.size, narrow.tolist),
        "two tensors": (lambda: torch.max(narrow, dim=0),),
    }


def _same(a: object, b: object) -> bool:
    if isinstance(b, torch.Tensor):
        return isinstance(a, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(b, tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(_same, a, b))
    return a == b


def _raises(mode: Mode) -> bool:
    """Whether the error of a function comes through."""
    two, three = torch.ones(2), torch.ones(3)
    try:
        with mode():
            two @ three
    except NotImplementedError:  # the answer has not been attempted
        raise
    except RuntimeError:
        return True
    return False


def observe(seed: int, mode: Mode) -> Evidence:
    """Run each case in a new mode; compare each result with the one outside of any mode."""
    wide = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
    seen: Evidence = {"kept": {}, "begins": []}
    for clause, cases in (("widens", _widens(wide)), ("nothing", _does_not_widen(wide))):
        seen[clause] = {}
        for case, operations in cases.items():
            with mode() as widened:
                seen["begins"].append(len(widened.found))
                results = [operation() for operation in operations]
            names = [name if isinstance(name, str) else type(name).__name__ for name in widened.found]
            seen[clause][case] = names[seen["begins"][-1] :]
            seen["kept"][case] = all(map(_same, results, (operation() for operation in operations)))
    return seen | {"raises": _raises(mode)}


class NotesWhatWidens(Check):
    """Each operation that got a 16-bit tensor and returned FP32 is in `found`, in order, as often as it ran."""

    hint = (
        "Call the operation first: you need its result and its arguments.\n"
        "A dtype has 16 bits if it is `torch.bfloat16` or `torch.float16`. Tensors may also be in `kwargs`.\n"
        "`any(...)` over `[*args, *kwargs.values()]`, and `func.__name__` is the name."
    )
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, wanted in expected["widens"].items():
            if seen["widens"][case] != wanted:
                return f"{case}: `found` should be {wanted}; yours is {seen['widens'][case]}."
        return None


class NotesNothingElse(Check):
    """What goes in wide, comes out narrow, or is no floating-point number, is not in `found`."""

    hint = (
        "Integers of 16 bits are no 16-bit floats, and a result may be no tensor at all: ask before you look at dtypes."
    )
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case in expected["nothing"]:
            if seen["nothing"][case]:
                return f"{case}: nothing should be noted; `found` is {seen['nothing'][case]}."
        return None


class ChangesNothing(Check):
    """Every operation gives what it gives without the mode, and each mode has a list of its own."""

    hint = "Return the result of `func`. `found` belongs in `__init__`, not in the class."
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case in expected["kept"]:
            if not seen["kept"][case]:
                return f"{case}: the operation gives another result while the mode is on. Return what `func` returns."
        if not seen["raises"]:
            return "A function that raises an error no longer does while the mode is on: let its errors through."
        if more := max(seen["begins"]):
            return f"A new mode begins with {more} names in `found`: they are an earlier mode's."
        return None


WIDENED = (NotesWhatWidens, NotesNothingElse, ChangesNothing)
