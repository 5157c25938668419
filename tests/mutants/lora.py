"""Wrong and right answers for the practice task of lora."""

from . import Mutant

SERVE, OWN = "lora.serve", "each_row_has_its_own_adapter"
LOOP = "for k in which[which >= 0].unique().tolist():"
ADD = "y = y.index_add(0, rows, scale * ((x[rows] @ A[k].T) @ B[k].T))"
LAST = "    return y\n"
BASE = "y = x @ weight.T\n"
GROUPS = """y = torch.zeros(len(x), len(weight), dtype=x.dtype)
    for k in range(-1, len(A)):
        rows = which == k
        y[rows] = x[rows] @ weight.T
        if k >= 0:
            y[rows] += scale * (x[rows] @ A[k].T) @ B[k].T
    return y
"""
ROWS = """y = torch.zeros(len(x), len(weight), dtype=x.dtype)
    for i, k in enumerate(which.tolist()):
        y[i] = weight @ x[i]
        if k >= 0:
            y[i] += scale * B[k] @ (A[k] @ x[i])
    return y
"""


def one(name: str, old: str, new: str, raises: str = "") -> Mutant:
    return Mutant(name, SERVE, OWN, ((old, new),), raises)


MUTANTS = [
    one("-1 takes the last adapter", LOOP, "for k in which.unique().tolist():"),
    one("-1 takes adapter 0", LOOP, "which = which.clamp(min=0)\n    " + LOOP),
    one("scale left out", ADD, ADD.replace("scale * ", "")),
    one("scale on the base, too", LAST, "    return y + (scale - 1) * (x @ weight.T)\n"),
    one("adapter 0 for all", ADD, ADD.replace("A[k]", "A[0]").replace("B[k]", "B[0]")),
    one("B of another adapter", ADD, ADD.replace("B[k]", "B[k - 1]")),
    one("merged weight for each adapter", ADD, ADD.replace("(x[rows] @ A[k].T) @ B[k].T", "x[rows] @ (B[k] @ A[k]).T")),
    one("a product of the base per group", BASE, GROUPS),
    one("a product of the base per row", BASE, ROWS),
    one("adapters without gradient", ADD, ADD.replace("A[k].T", "A[k].detach().T")),
    one("no gradient for x by the adapter", ADD, ADD.replace("x[rows]", "x[rows].detach()")),
    one("base without gradient", BASE, "y = (x @ weight.T).detach()\n"),
    one("written in place into x", BASE, "y = x @ weight.T\n    x.data.mul_(1.0 + 1e-3)\n"),
    one("FP64 comes out", LAST, "    return y.double()\n"),
    one("rows in the order of adapters", ADD, ADD.replace("0, rows,", "0, torch.arange(len(rows)),")),
    one("stacked, so that no rows fail", LAST, "    return torch.stack(list(y))\n", "in the case 'no rows'"),
    one("matrices for all rows", BASE, BASE + "    delta = B[which] @ A[which]\n    return y + scale * ((delta @ x[:, :, None]).squeeze(2) * (which >= 0)[:, None])\n"),
]  # fmt: skip

RIGHT = {
    "gathered adapters": """
import torch


def serve(x, weight, A, B, scale, which):
    used = (which >= 0).to(x.dtype)[:, None]
    at = which.clamp(min=0)
    low = torch.einsum("ni,nri->nr", x, A[at])
    return x @ weight.T + scale * used * torch.einsum("nr,nor->no", low, B[at])
""",
    "all adapters, then a choice": """
import torch
import torch.nn.functional as F


def serve(x, weight, A, B, scale, which):
    low = torch.einsum("ni,kri->nkr", x, A)
    chosen = F.one_hot(which + 1, len(A) + 1)[:, 1:].to(x.dtype)
    return F.linear(x, weight) + scale * torch.einsum("nkr,nk,kor->no", low, chosen, B)
""",
    "masks, each row written once": """
import torch


def serve(x, weight, A, B, scale, which):
    y = x @ weight.T
    for k in range(len(A)):
        rows = which == k
        y[rows] = y[rows] + scale * (x[rows] @ A[k].T) @ B[k].T
    return y
""",
    "row by row, the base before": """
import torch


def serve(x, weight, A, B, scale, which):
    y = torch.einsum("ni,oi->no", x, weight)
    for i, k in enumerate(which):
        if k >= 0:
            y[i] += scale * B[k] @ (A[k] @ x[i])
    return y
""",
}
