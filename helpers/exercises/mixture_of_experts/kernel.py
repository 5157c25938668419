"""Checks of the experts' work as two grouped matmuls: the loop's numbers, and no count read on the host."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from ...meter.operations_seen import OperationWatch
from ..base import Check, Evidence
from ..tensor_parallel.said import noted, wrong_tensor
from .layer import COUNTS, EXPERTS

WIDTH, HIDDEN = 8, 16  # rows of a multiple of 16 bytes, as the kernel needs them
DTYPES = {"FP32": (torch.float32, 1e-5), "BF16": (torch.bfloat16, 3e-2)}
NAMES = ("the output", "the gradient of rows", "the gradient of up", "the gradient of down")
MATMULS = ("mm", "bmm", "addmm", "baddbmm", "_grouped_mm", "addbmm", "mv", "dot")


def _inputs(seed: int, counts: list[int], dtype: torch.dtype) -> list[Tensor]:
    """Return rows, up, down and what the output is multiplied with."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((sum(counts), WIDTH), (EXPERTS, HIDDEN, WIDTH), (EXPERTS, WIDTH, HIDDEN), (sum(counts), WIDTH))
    return [torch.randn(*shape, generator=generator).to(dtype) for shape in shapes]


def _worked(inputs: list[Tensor], counts: list[int], grouped: Any) -> list[Evidence | None]:
    rows, up, down = (t.clone().requires_grad_() for t in inputs[:3])
    y = grouped(rows * 1, torch.tensor(counts), up * 1, down * 1)
    if y.requires_grad and y.shape == inputs[3].shape:
        (y * inputs[3]).sum().backward()
    return [str(y.dtype), *(noted(t) for t in (y, rows.grad, up.grad, down.grad))]


def _loop(rows: Tensor, counts: Tensor, up: Tensor, down: Tensor) -> Tensor:
    parts = rows.split(counts.tolist())
    return torch.cat([F.gelu(part @ u.T) @ d.T for part, u, d in zip(parts, up, down, strict=True)])


class EqualsTheLoop(Check):
    """Output and gradients are those of a loop over the experts, in FP32 and in BF16."""

    hint = (
        "`offs` holds where each expert's rows end: `counts.cumsum(dim=0).to(torch.int32)`.\n"
        "`F.grouped_mm(rows, b, offs=ends)` needs b of (E, C, H). `up` is (E, H, C): `up.mT` swaps the last two.\n"
        "The second matmul takes the hidden rows, the same ends and `down.mT`."
    )

    @staticmethod
    def probe(seed: int, grouped_kernel: Any) -> Evidence:
        seen = {}
        for name, (dtype, _) in DTYPES.items():
            for case, counts in COUNTS.items():
                inputs = _inputs(seed, counts, dtype)
                found = {"got": _worked(inputs, counts, grouped_kernel), "right": _worked(inputs, counts, _loop)}
                seen[f"{name}, {case}"] = found
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            got, right = seen[case]["got"], want["right"]
            if got[0] != right[0]:
                return f"{case}: the output is {got[0]}; it should be {right[0]}, the dtype of the rows."
            near = DTYPES[case.partition(",")[0]][1]
            for i, what in enumerate(NAMES, 1):
                text = wrong_tensor(got[i], right[i], {}, near)
                if text:
                    return f"{case}: {what} {text}."
        return None


@contextmanager
def _silent() -> Iterator[None]:
    """Keep PyTorch from logging an operation that refuses its inputs: it raises as well."""
    log = logging.getLogger(FakeTensorMode.__module__)
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


class ReadsNoCounts(Check):
    """The host never reads a value of `counts`, so it never waits for the device."""

    hint = (
        "`tolist()`, `item()`, `int(...)`, `split(...)` by values and `if counts[e]` all read numbers on the host.\n"
        "`cumsum` and `.to(torch.int32)` stay on the device."
    )

    @staticmethod
    def probe(seed: int, grouped_kernel: Any) -> Evidence:
        with _silent(), FakeTensorMode():  # tensors without data: there is nothing that the host could read
            rows, up, down, _ = _inputs(seed, COUNTS["uneven"], torch.bfloat16)
            counts = torch.full((EXPERTS,), 4)
            try:
                grouped_kernel(rows, counts, up, down)
            except DataDependentOutputException:
                return {"reads": True}
        return {"reads": False}

    @staticmethod
    def judge(seen: Evidence, _: Evidence) -> str | None:
        if not seen["reads"]:
            return None
        return "The host reads values of `counts`, so on a GPU it waits there for the router. In which line?"


class _Matmuls(OperationWatch):
    """Counts the matmuls in its `with` block, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, int] = {}

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Count the operation if it is a matmul."""
        name = func.overloadpacket.__name__
        if name in MATMULS:
            self.seen[name] = self.seen.get(name, 0) + 1


class TakesTwoMatmuls(Check):
    """Two calls of `F.grouped_mm` are the only matmuls of the forward pass."""

    hint = "One call for all rows and all `up`, one for all hidden rows and all `down`. No loop is left."

    @staticmethod
    def probe(seed: int, grouped_kernel: Any) -> Evidence:
        rows, up, down, _ = _inputs(seed, COUNTS["uneven"], torch.float32)
        with _Matmuls() as matmuls:
            grouped_kernel(rows, torch.tensor(COUNTS["uneven"]), up, down)
        return dict(sorted(matmuls.seen.items()))

    @staticmethod
    def judge(seen: Evidence, _: Evidence) -> str | None:
        if seen == {"_grouped_mm": 2}:
            return None
        listed = ", ".join(f"{times} x {name.lstrip('_')}" for name, times in seen.items()) or "none"
        return f"The forward pass calls these matmuls: {listed}; 2 x grouped_mm is enough."


KERNEL = (EqualsTheLoop, ReadsNoCounts, TakesTwoMatmuls)
