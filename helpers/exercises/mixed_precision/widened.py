"""Checks of the mode that notes where 16-bit tensors become FP32: what it notes, leaves out, and changes."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ..base import Check, Evidence

Mode = Callable[[], Any]


def _noted(mode: Mode, *operations: Callable[[], object]) -> list[str]:
    """Return what a new mode notes while `operations` run, one after the other."""
    with mode() as widened:
        for operation in operations:
            operation()
    return [name if isinstance(name, str) else type(name).__name__ for name in widened.found]


class NotesWhatWidens(Check):
    """Each operation that got a 16-bit tensor and returned FP32 is in `found`, in order, as often as it ran."""

    hint = (
        "Call the operation first: you need its result and its arguments.\n"
        "A dtype has 16 bits if it is `torch.bfloat16` or `torch.float16`. Tensors may also be in `kwargs`.\n"
        "`any(...)` over `[*args, *kwargs.values()]`, and `func.__name__` is the name."
    )

    @staticmethod
    def probe(seed: int, mode: Mode) -> Evidence:
        wide = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
        bf16, fp16 = wide.bfloat16(), wide.half()
        in_a_row = (lambda: bf16 + wide, lambda: bf16.float(), lambda: bf16 + wide, lambda: fp16 * wide)
        return {
            "BF16 + FP32": _noted(mode, lambda: bf16 + wide),
            "FP32 * BF16": _noted(mode, lambda: wide * bf16),
            "float() of FP16": _noted(mode, lambda: fp16.float()),
            "a keyword": _noted(mode, lambda: torch.add(wide, other=bf16)),
            "four in a row": _noted(mode, *in_a_row),
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, wanted in expected.items():
            if seen[case] != wanted:
                return f"{case}: `found` should be {wanted}; yours is {seen[case]}."
        return None


class NotesNothingElse(Check):
    """What goes in wide, comes out narrow, or is no floating-point number, is not in `found`."""

    hint = (
        "Integers of 16 bits are no 16-bit floats, and a result may be no tensor at all: ask before you look at dtypes."
    )

    @staticmethod
    def probe(seed: int, mode: Mode) -> Evidence:
        wide = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
        narrow = wide.bfloat16()
        return {
            "FP32 to FP32": _noted(mode, lambda: torch.relu(wide), lambda: F.layer_norm(wide, (4,))),
            "BF16 to BF16": _noted(mode, lambda: torch.relu(narrow), lambda: narrow @ narrow.T),
            "FP32 to BF16": _noted(mode, wide.bfloat16),
            "BF16 to FP64": _noted(mode, narrow.double),
            "int16 to FP32": _noted(mode, torch.arange(3, dtype=torch.int16).float),
            "a size": _noted(mode, lambda: narrow.size(), lambda: narrow.tolist()),
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case in expected:
            if seen[case]:
                return f"{case}: nothing should be noted; `found` is {seen[case]}."
        return None


class ChangesNothing(Check):
    """Every operation gives what it gives without the mode, and each mode has a list of its own."""

    hint = "Return the result of `func`. `found` belongs in `__init__`, not in the class."

    @staticmethod
    def probe(seed: int, mode: Mode) -> Evidence:
        wide = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
        narrow = wide.bfloat16()
        with mode() as first:
            results = [narrow + wide, F.linear(wide, weight=wide), torch.relu(narrow)]
        with mode() as second:
            pass
        right = [narrow + wide, F.linear(wide, weight=wide), torch.relu(narrow)]
        kept = [
            isinstance(a, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
            for a, b in zip(results, right, strict=True)
        ]
        return {"kept": all(kept), "first": len(first.found), "second": len(second.found)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not seen["kept"]:
            return "An operation gives another result while the mode is on. Return what `func` returns."
        if seen["second"]:
            return f"A new mode begins with {seen['second']} names in `found`: they are an earlier mode's."
        return None


WIDENED = (NotesWhatWidens, NotesNothingElse, ChangesNothing)
