"""Wrong and right answers for the practice task of lab 14."""

from . import Mutant

SERVE, OWN = "lab14.serve", "each_row_has_its_own_adapter"
LOOP = "for k in which[which >= 0].unique().tolist():"
ADD = "correction = correction.index_add(0, rows, (x[rows] @ A[k].T) @ B[k].T)"
LAST = "return y + scale * correction"


def one(name: str, old: str, new: str, raises: str = "") -> Mutant:
    return Mutant(name, SERVE, OWN, ((old, new),), raises)


MUTANTS = [
    one("-1 takes the last adapter", LOOP, "for k in which.unique().tolist():"),
    one("scale left out", LAST, "return y + correction"),
    one("scale on the base, too", LAST, "return scale * (y + correction)"),
    one("adapter 0 for all", ADD, ADD.replace("A[k]", "A[0]").replace("B[k]", "B[0]")),
    one("B of another adapter", ADD, ADD.replace("B[k]", "B[k - 1]")),
    one("merged weight for each adapter", ADD, "correction = correction.index_add(0, rows, x[rows] @ (B[k] @ A[k]).T)"),
    one("adapters without gradient", ADD, ADD.replace("A[k].T", "A[k].detach().T")),
    one("no gradient for x by the adapter", ADD, ADD.replace("x[rows]", "x[rows].detach()")),
    one("base without gradient", "y = x @ weight.T", "y = (x @ weight.T).detach()"),
    one("written in place into x", "y = x @ weight.T", "y = x @ weight.T\n    x.data.mul_(1.0 + 1e-3)"),
    one("FP64 comes out", LAST, "return (y + scale * correction).double()"),
    one("rows in the order of adapters", ADD, ADD.replace("0, rows,", "0, torch.arange(len(rows)),")),
    one("matrices for all rows", LAST, "delta = B[which] @ A[which]\n    return y + scale * ((delta @ x[:, :, None]).squeeze(2) * (which >= 0)[:, None])"),
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
}
