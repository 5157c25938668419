"""A product of two FP8 matrices that notes what it was given: which matrix, in which format, with which scale."""

from typing import Any

import torch
from torch import Tensor

from ..base import Evidence


class ProductLog:
    """Stands in for the lab's `scaled_mm`, by emulation.

    Args:
        known: the matrices that may be handed to it, by name. A transpose is told by its shape, so no two sizes agree.
        scales: the numbers that may be handed to it, by name.
    """

    def __init__(self, known: dict[str, Tensor], scales: dict[str, Tensor]) -> None:
        self.known, self.scales = known, scales
        self.calls: list[Evidence] = []

    def __call__(self, a: Tensor, scale_a: Any, b: Tensor, scale_b: Any) -> Tensor:
        """Return a (M, K) @ b (K, N) times both scales, in BF16; zeros where the shapes do not fit."""
        self.calls.append(
            {
                "names": [self._matrix(a), self._matrix(b)],
                "formats": [str(a.dtype), str(b.dtype)],
                "scales": [self._scale(scale_a), self._scale(scale_b)],
            }
        )
        if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
            return torch.zeros(a.shape[0], b.shape[-1], dtype=torch.bfloat16)
        return (a.float() @ b.float() * (scale_a * scale_b)).to(torch.bfloat16)

    def _matrix(self, given: Tensor) -> str:
        """Name a matrix by its values: "g", "g.t()", or its shape where it is neither."""
        for name, matrix in self.known.items():
            for suffix, shown in (("", matrix), (".t()", matrix.t())):
                if given.shape == shown.shape and _similar(given.float(), shown.float()):
                    return name + suffix
        return "x".join(map(str, given.shape))

    def _scale(self, given: Any) -> str:
        number = float(given)
        for name, scale in self.scales.items():
            if abs(number / float(scale) - 1) < 1e-6:
                return name
        return f"{number:.6g}"


def _similar(a: Tensor, b: Tensor) -> bool:
    """Say whether two matrices point the same way: one may be a multiple of the other, rounded."""
    return bool((a * b).sum() > 0.98 * a.norm() * b.norm() > 0)


def wrong_call(got: Evidence, want: Evidence, keys: tuple[str, ...] = ("names", "formats", "scales")) -> str | None:
    """Compare one call with the right one, in the given respects; return what differs in words.

    B.t() times A.t() is the transpose of A times B. A call that is the right one in this form is right, too; whether
    its result is transposed back shows in the result.
    """
    turned = {key: got[key][::-1] for key in keys} | {"names": [_transposed(name) for name in got["names"][::-1]]}
    if [_matrix_of(name) for name in turned["names"]] == [_matrix_of(name) for name in want["names"]]:
        got = turned if "names" not in keys or turned["names"] == want["names"] else got
    words = {"names": "multiplies", "formats": "gets operands in", "scales": "gets the scales"}
    for key in keys:
        if got[key] != want[key]:
            wrong, right = (" and ".join(_short(each) for each in row[key]) for row in (got, want))
            return f"the call to `product` {words[key]} {wrong}; expected {right}"
    return None


def _matrix_of(name: str) -> str:
    return name.removesuffix(".t()")


def _transposed(name: str) -> str:
    return name.removesuffix(".t()") if name.endswith(".t()") else f"{name}.t()"


def _short(name: str) -> str:
    if name[0].isdigit() and "x" in name:
        return f"another matrix, {name.replace('x', ' x ')},"
    return {"torch.float8_e4m3fn": "E4M3", "torch.float8_e5m2": "E5M2", "g_in_E4M3": "g's for E4M3"}.get(name, name)
