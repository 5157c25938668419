"""Check of Newton-Schulz: a matrix whose singular values all come near 1, by matmuls alone."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...core.device import pick_device
from ...meter.operations_seen import each_operation
from ..base import Check, Evidence
from ..probing.distance import relative_distance
from ..probing.plain import plain

Orthogonalize = Callable[[Tensor, int], Tensor]
SHAPES = {"12 x 12": (12, 12), "wide, 8 x 20": (8, 20), "tall, 20 x 8": (20, 8)}
SAME = 1e-3  # other orders of summation differ by less


def _matrix(seed: int, rows: int, columns: int, size: float = 1.0) -> Tensor:
    """Return a matrix whose singular values fall from `size` to a thirtieth of it."""
    generator = torch.Generator().manual_seed(seed)
    left, _ = torch.linalg.qr(torch.randn(rows, min(rows, columns), generator=generator))
    right, _ = torch.linalg.qr(torch.randn(columns, min(rows, columns), generator=generator))
    values = size * torch.logspace(0, -1.5, min(rows, columns))
    return ((left * values) @ right.t()).to(pick_device())


def _times(iterations: int) -> str:
    return f"{iterations} iteration{'s' * (iterations > 1)}"


def _mistaken(matrix: Tensor, iterations: int) -> dict[str, Tensor]:
    """Return results with one mistake, by words that name it."""
    x, coefficients = matrix / matrix.norm(), (3.4445, -4.7750, 2.0315)
    others = {f"after {_times(n)}": _iterated(x, n, *coefficients) for n in range(1, 8) if n != iterations}
    return others | {
        "without the division by the norm": _iterated(matrix, iterations, *coefficients),
        "if you divide by the largest singular value": _iterated(
            matrix / torch.linalg.matrix_norm(matrix, 2), iterations, *coefficients
        ),
        "without the term c·A²": _iterated(x, iterations, *coefficients[:2], 0.0),
        "with the classical coefficients": _iterated(x, iterations, 1.5, -0.5, 0.0),
    }


def _iterated(x: Tensor, iterations: int, a: float, b: float, c: float) -> Tensor:
    for _ in range(iterations):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x


def _numbers(result: Any, shape: tuple[int, ...]) -> Evidence:
    if not isinstance(result, Tensor) or tuple(result.shape) != shape:
        return {"returned": list(result.shape) if isinstance(result, Tensor) else type(result).__name__}
    return {"numbers": plain(result).double().flatten().tolist()}


class BringsSingularValuesNearOne(Check):
    """The result is that of the given number of Newton-Schulz iterations, for square, wide and tall matrices."""

    hint = (
        "Divide by the Frobenius norm first: then no singular value is above 1.\n"
        "One iteration: A = X Xᵀ, then X = a·X + (b·A + c·A²) X. Print the singular values after each.\n"
        "If there are more rows than columns, work with the transpose, and transpose the result."
    )

    @staticmethod
    def probe(seed: int, orthogonalize: Orthogonalize) -> Evidence:
        seen: Evidence = {}
        for name, shape in SHAPES.items():
            for iterations, size in ((1, 2.0), (5, 1e-3), (5, 300.0)):
                case = f"{name}, largest singular value {size:g}, {_times(iterations)}"
                matrix = _matrix(seed, *shape, size)
                mistaken = {
                    words: plain(result).double().flatten().tolist()
                    for words, result in _mistaken(matrix, iterations).items()
                }
                seen[case] = _numbers(orthogonalize(matrix.clone(), iterations), shape) | {"mistaken": mistaken}
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, right in expected.items():
            if "returned" in seen[case]:
                got = seen[case]["returned"]
                what = f"one of shape {got}" if isinstance(got, list) else f"a {got}"
                return f"{case}: expected a matrix of the same shape; you return {what}."
            mine, wanted = (torch.tensor(each["numbers"], dtype=torch.float64) for each in (seen[case], right))
            off = ((mine - wanted).norm() / wanted.norm()).item()
            if not off <= SAME:
                far = f"{case}: your result differs from the correct one by {off:.2g} of its norm."
                for words, result in right["mistaken"].items():
                    if relative_distance(seen[case]["numbers"], result) <= SAME:
                        return f"{far} It is what you get {words}."
                return (
                    f"{far} Check the division by the norm, the three coefficients, and that each iteration starts "
                    "with the X of the one before."
                )
        return None


class SquaresTheSmallerSide(Check):
    """No intermediate is larger than the matrix: X Xᵀ has the size of the smaller side."""

    hint = "X Xᵀ of a tall matrix is large. Transpose first, so that X has no more rows than columns."

    @staticmethod
    def probe(seed: int, orthogonalize: Orthogonalize) -> Evidence:
        largest = {}
        for name, shape in (("300 x 6", (300, 6)), ("6 x 300", (6, 300))):
            most = 0

            def see(func: Any, args: Any, kwargs: Any, result: Any) -> None:
                nonlocal most
                if isinstance(result, Tensor):
                    most = max(most, result.numel())

            matrix = _matrix(seed + 1, *shape)
            each_operation(lambda matrix=matrix: orthogonalize(matrix, 2), see)
            largest[name] = most
        return largest

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name, most in seen.items():
            if most > 300 * 6:
                return (
                    f"{name}: an operation makes a tensor of {most:,} numbers; the matrix has {300 * 6:,}. Which is "
                    "smaller, X Xᵀ or Xᵀ X?"
                )
        return None


class LeavesTheMomentumAlone(Check):
    """The matrix that is passed in does not change, and zeros give zeros."""

    hint = "In-place operations on the argument change the momentum. Add a tiny number to the norm before you divide."

    @staticmethod
    def probe(seed: int, orthogonalize: Orthogonalize) -> Evidence:
        matrix = _matrix(seed + 2, 9, 14)
        before = matrix.clone()
        orthogonalize(matrix, 3)
        zeros = orthogonalize(torch.zeros(4, 6, device=pick_device()), 3)
        return {"changed": not torch.equal(matrix, before), "zeros": bool((zeros == 0).all())}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["changed"]:
            return "The matrix that you were given has changed: the optimizer still needs its momentum."
        return None if seen["zeros"] else "A matrix of zeros does not give zeros: do you divide by a norm of 0?"


NEWTON = (BringsSingularValuesNearOne, SquaresTheSmallerSide, LeavesTheMomentumAlone)
