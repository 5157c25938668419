"""Practice check of lab 14: many adapters on one base."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..memory import MemoryMeter
from .base import Check, Evidence, Part
from .distance import relative_distance

TOLERANCE = 1e-9  # relative, in FP64


def _given(seed: int, which: list[int], k: int, dtype: torch.dtype = torch.float64) -> tuple[Any, ...]:
    """x (N, 12), weight (7, 12), A (K, 3, 12), B (K, 7, 3), scale, which (N,)."""
    generator = torch.Generator().manual_seed(seed)
    x, weight, A, B = (
        torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)
        for shape in ((len(which), 12), (7, 12), (k, 3, 12), (k, 7, 3))
    )
    return x.requires_grad_(), weight, A.requires_grad_(), B.requires_grad_(), 0.75, torch.tensor(which).long()


CASES = {
    "mixed rows": ([2, 0, -1, 2, 1, 0, -1], 3),
    "one adapter": ([0, 0, 0], 1),
    "base alone": ([-1, -1], 2),
    "an adapter nobody uses": ([3, 0, 3], 4),
    "no rows": ([], 2),
}


def _run(serve: Callable[..., Tensor], seed: int, which: list[int], k: int) -> Evidence:
    given = _given(seed, which, k)
    before = [t.detach().clone() for t in given if isinstance(t, Tensor)]
    y = serve(*given)
    goal = torch.randn(len(which), 7, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 1))
    if y.requires_grad:
        (y * goal).sum().backward()
    after = [t.detach() for t in given if isinstance(t, Tensor)]
    leaves = {"x": given[0], "A": given[2], "B": given[3]}
    return {
        "shape": list(y.shape),
        "y": y.detach().flatten().tolist(),
        "gradients": {
            name: (torch.zeros_like(t) if t.grad is None else t.grad).flatten().tolist() for name, t in leaves.items()
        },
        "changed": not all(torch.equal(a, b) for a, b in zip(after, before, strict=True)),
    }


class EachRowHasItsOwnAdapter(Check):
    """Every row goes through the base and its own adapter, forward and backward, without a merged matrix."""

    hint = (
        "Which rows belong to adapter k? A boolean mask or nonzero() finds them; index_add puts the results back. Rows "
        "with -1 take no part. (x Aᵀ) Bᵀ has two thin products; B A is as large as the weight."
    )

    @staticmethod
    def probe(seed: int, serve: Callable[..., Tensor]) -> Evidence:
        cases = {name: _run(serve, seed, which, k) for name, (which, k) in CASES.items()}
        wide = 1024  # a weight of 4 MiB, against rows and adapters of a few KiB
        generator = torch.Generator().manual_seed(seed)
        x, weight = torch.randn(6, wide, generator=generator), torch.randn(wide, wide, generator=generator)
        A, B = torch.randn(3, 2, wide, generator=generator), torch.randn(3, wide, 2, generator=generator)
        meters = {}
        for name, (a, b, which) in {
            "three adapters": (A, B, [0, 1, 2, -1, 0, 1]),
            "one adapter": (A[:1], B[:1], [0, 0, 0, 0, 0, 0]),
        }.items():
            with MemoryMeter() as meter, torch.no_grad():
                serve(x, weight, a, b, 1.0, torch.tensor(which))
            meters[name] = meter.peak_bytes
        half = serve(*(t.detach() if isinstance(t, Tensor) else t for t in _given(seed, [0, 1], 2, torch.bfloat16)))
        return {"cases": cases, "bytes": meters, "weight": weight.nbytes, "dtype": str(half.dtype)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected["cases"].items():
            got = seen["cases"][case]
            if got["shape"] != want["shape"]:
                return f"{case}: the result has shape {tuple(got['shape'])}; {tuple(want['shape'])} is right."
            off = relative_distance(got["y"], want["y"])
            if not off <= TOLERANCE:
                return f"{case}: the result is {off:.2g} off, relative. Which adapter did each row get, and -1?"
            for name, gradient in want["gradients"].items():
                off = relative_distance(got["gradients"][name], gradient)
                if not off <= TOLERANCE:
                    return f"{case}: the gradient of {name} is {off:.2g} off, relative. Was something detached?"
            if got["changed"]:
                return f"{case}: something that was given has been changed."
        if seen["dtype"] != expected["dtype"]:
            return f"BF16 in, {seen['dtype'].removeprefix('torch.')} out: the result should keep the dtype."
        for name, nbytes in seen["bytes"].items():
            more = nbytes - expected["bytes"][name]  # both count what was given
            if not more < 0.5 * expected["weight"]:
                return (
                    f"{name}: {more:,} bytes more than needed are made on the way; the weight has "
                    f"{expected['weight']:,}. Is an (out, in) matrix among them?"
                )
        return None


PARTS = (Part("lab14.serve", ("serve",), (EachRowHasItsOwnAdapter,)),)
