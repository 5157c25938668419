"""Check of the two functions of sequence parallelism: tokens gathered, and partial sums scattered."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ...meter.operations_seen import OperationWatch
from ...ranks.collectives import Collectives
from ..base import Check, Evidence
from ..probing.cases import case_name, cases_on_ranks
from ..probing.on_ranks import on_ranks
from ..tensor_parallel.inputs import drawn, leaf
from ..tensor_parallel.said import by_rank, noted, wrong_passes, wrong_tensor

SHAPES = {"2 dimensions": (), "3 dimensions": (5,), "4 dimensions": (2, 3)}  # of an input, after (B, tokens)
ROWS, TOKENS = 3, 2  # rows, tokens of a rank
NOT_CONTIGUOUS = "gets a tensor that is not contiguous; gloo accepts that, but NCCL raises an error"


def _gathered(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts, dim=1)


def _scattered(parts: list[Tensor]) -> Tensor:
    return sum(parts).chunk(dist.get_world_size(), dim=1)[dist.get_rank()]


def _strided(tensor: Tensor) -> Tensor:
    """Return the same tensor with another memory layout."""
    return tensor.transpose(0, -1).contiguous().transpose(0, -1)


class _Layouts(OperationWatch):
    """Records whether a collective gets a tensor that is not contiguous: gloo accepts it, NCCL does not."""

    def __init__(self) -> None:
        super().__init__()
        self.strided = False

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if func.namespace in ("c10d", "_c10d_functional"):
            self.strided |= any(isinstance(t, Tensor) and not t.is_contiguous() for t in tree_leaves(args))


def _passed(Gather: Any, Scatter: Any, seed: int, strided: bool) -> Evidence:
    """One rank: results and gradients of both functions, and whether what came in was changed."""
    rank, n, seen = dist.get_rank(), dist.get_world_size(), {}
    for case, rest in SHAPES.items():
        part, whole = (ROWS, TOKENS, *rest), (ROWS, n * TOKENS, *rest)
        for name, function in (("Gather", Gather), ("Scatter", Scatter)):
            gathers = name == "Gather"
            xs, back = drawn(seed, *(part if gathers else whole)), drawn(seed + 1, *(whole if gathers else part))
            x, gradient = xs[rank], back[rank].clone()
            if strided:
                x, gradient = _strided(x), _strided(gradient)
            kept, before = x.clone(), x.detach().clone().requires_grad_()
            mine = before * 1
            with _Layouts() as forward:
                y = function.apply(mine)
            result = noted(y)  # before anything writes into it
            with _Layouts() as backward:
                y.backward(gradient)
            right = (_gathered(xs), _scattered(back)) if gathers else (_scattered(xs), _gathered(back))
            own = back[rank].chunk(n, dim=1)[rank] if gathers else xs[rank].chunk(n, dim=1)[rank]
            seen[f"{name}, {case}"] = {
                "got": [result, noted(before.grad)],
                "right": [noted(t) for t in right],
                "own": noted(own),
                "strided": [forward.strided, backward.strided],
                "changed": [not torch.equal(mine, kept), not torch.equal(gradient, back[rank])],
            }
    return seen


def _wrong(seen: list[Evidence], expected: list[Evidence]) -> str | None:
    for case in expected[0]:
        pairs = [(got[case], want[case]) for got, want in zip(seen, expected, strict=True)]
        for i, what in enumerate(("the result", "the gradient of x")):
            sums = case.startswith("Gather") == bool(i)  # Gather adds on the way back, Scatter forward
            texts = []
            for got, want in pairs:
                mistakes = (
                    {"comes from this rank alone: the other ranks' parts were not added": want["own"]} if sums else {}
                )
                texts.append(wrong_tensor(got["got"][i], want["right"][i], mistakes))
            if said := by_rank(f"{case}, {what}", texts):
                return (
                    f"{said}\nAre the ranks' tokens in rank order along dimension 1, and the other ranks' parts added?"
                )
    return None


def _sent(Gather: Any, Scatter: Any, seed: int) -> Evidence:
    """One rank: what is sent, and in which dtype."""
    seen, n = {}, dist.get_world_size()
    for dtype in (torch.float32, torch.bfloat16):
        for name, function in (("Gather", Gather), ("Scatter", Scatter)):
            tokens = TOKENS if name == "Gather" else n * TOKENS
            x = leaf(drawn(seed, ROWS, tokens, 5, dtype=dtype)[0])
            with Collectives() as forward:
                y = function.apply(x * 1)
            with Collectives() as backward:
                y.backward(torch.ones_like(y))  # with its own memory, which a collective may read
            seen[f"{name}, {str(dtype).removeprefix('torch.')}"] = {
                "forward": [list(call) for call in forward.calls],
                "backward": [list(call) for call in backward.calls],
                "dtypes": [str(t).removeprefix("torch.") for t in (y.dtype, x.grad.dtype)],
            }
    return seen


VALUES, MESSAGES = (case_name(3, name) for name in ("values", "messages"))


def _case(Gather: Any, Scatter: Any, seed: int, messages: bool) -> Evidence:
    """One rank: what is sent, or what is computed."""
    return _sent(Gather, Scatter, seed) if messages else _passed(Gather, Scatter, seed, False)


def observe(seed: int, *answers: Any) -> Evidence:
    """Return what each of three ranks measured, by case."""
    return cases_on_ranks(_case, {3: {"values": False, "messages": True}}, *answers, seed)


class GathersAndScatters(Check):
    """Gather collects the tokens and scatters the sum of the gradients; Scatter does the reverse."""

    hint = (
        "Gather sends a token to all ranks. What gradient comes back from each, and which rank needs the sum?\n"
        "Scatter's forward pass is Gather's backward pass, and vice versa.\n"
        "The tensor collectives stack along dimension 0, but the sequence is dimension 1: use `torch.cat` and `chunk`."
    )

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong(seen[VALUES], expected[VALUES])


class TakesAnyLayout(Check):
    """x and the incoming gradient need not be contiguous, and they are not changed."""

    hint = "Collectives read raw memory: pass contiguous tensors, and receive into new buffers."

    @staticmethod
    def probe(seed: int, *answers: Any) -> Evidence:
        # apart from the others, because `view` raises where a tensor is not contiguous
        return {"ranks": on_ranks(_passed, 2, *answers, seed + 2, True)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case in expected["ranks"][0]:
            for i, what in enumerate(("x", "the incoming gradient")):
                texts = ["was changed in place" if got[case]["changed"][i] else None for got in seen["ranks"]]
                if said := by_rank(f"{case}, {what}", texts):
                    return f"{said}\nWhich tensor does the collective write into?"
                texts = [NOT_CONTIGUOUS if got[case]["strided"][i] else None for got in seen["ranks"]]
                if said := by_rank(f"{case}, collective of {what}", texts):
                    return f"{said}\nMake a contiguous copy first."
        return _wrong(seen["ranks"], expected["ranks"])


class SendsHalfAnAllReduce(Check):
    """An all-gather in one direction, a reduce-scatter in the other, and nothing else."""

    hint = (
        "An all-reduce followed by a slice sends twice the necessary bytes. Which collective adds, and gives "
        "each rank only its part?\n"
        "dist.reduce_scatter_tensor(mine, full): full holds each rank's part, one after the other along dimension 0."
    )

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        ranks = seen[MESSAGES]
        for case, want in expected[MESSAGES][0].items():
            if said := wrong_passes(case, [got[case] for got in ranks], want):
                return f"{said}\nWhich collective sends each rank only what it needs?"
            texts = [None if got[case]["dtypes"] == want["dtypes"] else f"is {got[case]['dtypes'][0]}" for got in ranks]
            if said := by_rank(f"{case}, dtype of the result", texts):
                return f"{said}\nResults and gradients have the dtype of x."
        return None


SEQUENCE = (GathersAndScatters, TakesAnyLayout, SendsHalfAnAllReduce)
