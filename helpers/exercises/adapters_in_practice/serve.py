"""Many adapters on one base, in one batch."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...meter.operations_seen import OperationWatch
from ...meter.recorder import MemoryMeter
from ..base import Check, Evidence
from ..probing.distance import relative_distance

TOLERANCE = 1e-9  # relative, in FP64


def _given(seed: int, which: list[int], k: int, dtype: torch.dtype = torch.float64) -> tuple[Any, ...]:
    """x (N, 12), weight (7, 12), A (K, 3, 12), B (K, 7, 3), scale, which (N,)."""
    generator = torch.Generator().manual_seed(seed)
    x, weight, A, B = (
        torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)
        for shape in ((len(which), 12), (7, 12), (k, 3, 12), (k, 7, 3))
    )
    return x.requires_grad_(), weight, A.requires_grad_(), B.requires_grad_(), SCALE, torch.tensor(which).long()


SCALE = 0.75
CASES = {  # the simple ones first, so that a diagnosis names the simplest that fails
    "one adapter": ([0, 0, 0], 1),
    "an adapter that no row uses": ([3, 0, 3], 4),
    "base alone": ([-1, -1], 2),
    "mixed rows": ([2, 0, -1, 2, 1, 0, -1], 3),
    "no rows": ([], 2),
}
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "linear", "dot")


class _Products(OperationWatch):
    """Counts the matrix products that read the memory of `weight`."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.address, self.count = weight.untyped_storage().data_ptr(), 0

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if func.overloadpacket.__name__ in PRODUCTS:
            given = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
            self.count += any(a.untyped_storage().data_ptr() == self.address for a in given)


def _off(case: str, got: list[float], want: list[float], base: list[float]) -> str | None:
    """Say what is wrong with the rows of `got`; all are flat (N x 7)."""
    off = relative_distance(got, want)
    if off <= TOLERANCE:
        return None
    a, b, c = (torch.tensor(values, dtype=torch.float64).view(-1, 7) for values in (got, want, base))
    if relative_distance((SCALE * (a - c)).flatten().tolist(), (b - c).flatten().tolist()) <= TOLERANCE:
        return (
            f"{case}: the correction is too large by a factor of {1 / SCALE:.3g}; scale is {SCALE}. Did you multiply "
            "by it?"
        )
    which = CASES[case][0]
    wrong = [not relative_distance(x.tolist(), y.tolist()) <= TOLERANCE for x, y in zip(a, b, strict=True)]
    if {k for k, bad in zip(which, wrong, strict=True) if bad} == {-1}:
        return f"{case}: only the rows with -1 are wrong. -1 means the base alone; as an index it is the last adapter."
    if relative_distance(got, (SCALE * b).flatten().tolist()) <= TOLERANCE:
        return f"{case}: the result is {SCALE} times what it should be: scale multiplies the correction, not the base."
    first = wrong.index(True) if any(wrong) else 0
    diagnosis = (
        f"{case}: the result is off by {off:.2g} (relative); the first wrong row is {first}, of adapter {which[first]}."
    )
    if len(set(which)) == 1:
        return diagnosis
    return f"{diagnosis} `which` is {which}. Does each row use its own A and B, and is its result in the same row of y?"


def _named(case: str, serve: Callable[..., Tensor], seed: int, which: list[int], k: int) -> Evidence:
    """Return what `_run` does; what it raises says in which case."""
    try:
        return _run(serve, seed, which, k)
    except Exception as error:
        error.args = (f"in the case '{case}': {error}",)
        raise


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
        "x": before[0].flatten().tolist(),
        "weight": before[1].flatten().tolist(),
        "gradients": {
            name: (torch.zeros_like(t) if t.grad is None else t.grad).flatten().tolist() for name, t in leaves.items()
        },
        "changed": not all(torch.equal(a, b) for a, b in zip(after, before, strict=True)),
    }


class EachRowHasItsOwnAdapter(Check):
    """Every row goes through the base and its own adapter, forward and backward, without a merged matrix."""

    hint = (
        "Which rows belong to adapter k? A boolean mask or nonzero() finds them, and index_add adds the results to "
        "these rows. Compute x @ weight.T once, before any loop. (x Aᵀ) Bᵀ has two thin matmuls; B A is as large as "
        "the weight."
    )

    @staticmethod
    def probe(seed: int, serve: Callable[..., Tensor]) -> Evidence:
        cases = {name: _named(name, serve, seed, which, k) for name, (which, k) in CASES.items()}
        given = _given(seed, *CASES["mixed rows"])
        with torch.no_grad(), _Products(given[1]) as products:
            serve(*given)
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
        return {
            "cases": cases,
            "products": products.count,
            "bytes": meters,
            "weight": weight.nbytes,
            "dtype": str(half.dtype),
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected["cases"].items():
            got = seen["cases"][case]
            if got["shape"] != want["shape"]:
                return f"{case}: the result has shape {tuple(got['shape'])}; it should have {tuple(want['shape'])}."
            if got["changed"]:
                return f"{case}: an argument has been changed; work on new tensors."
            x, weight = (torch.tensor(want[name], dtype=torch.float64).view(-1, 12) for name in ("x", "weight"))
            wrong = _off(case, got["y"], want["y"], (x @ weight.T).flatten().tolist())
            if wrong:
                return wrong
            for name, gradient in want["gradients"].items():
                off = relative_distance(got["gradients"][name], gradient)
                if not off <= TOLERANCE:
                    return f"{case}: the gradient of {name} is off by {off:.2g} (relative). Was something detached?"
        if seen["dtype"] != expected["dtype"]:
            return f"In BF16, the result is {seen['dtype'].removeprefix('torch.')}; it should have the dtype of x."
        if seen["products"] > 1:
            rows, products = len(CASES["mixed rows"][0]), seen["products"]
            return f"For {rows} rows the base is multiplied {products} times; once is enough, for all rows together."
        for name, nbytes in seen["bytes"].items():
            more = nbytes - expected["bytes"][name]  # both count what was given
            if not more < 0.5 * expected["weight"]:
                return (
                    f"{name}: serve allocates {more:,} bytes more than it needs; the weight takes "
                    f"{expected['weight']:,}. Does it create a matrix of shape (out, in)?"
                )
        return None


SERVE = (EachRowHasItsOwnAdapter,)
