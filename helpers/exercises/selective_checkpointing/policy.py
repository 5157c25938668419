"""Check of a selective policy: which results it keeps, seen from the operations that run again in the backward pass."""

import inspect
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ...meter.operations_seen import OperationWatch
from ..base import Check, Evidence

KeepCostly = Callable[[float], Callable[[], Any]]
_USED_UP = "backward an extra time"
_MATMULS = ("mm", "addmm", "bmm")


class _Operations(OperationWatch):
    """Counts operations by name and by the shapes of the tensors that they take."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        name = func._overloadpacket.__name__
        name = "attention" if name.startswith("_scaled_dot_product") and "backward" not in name else name
        self.seen[f"{name} of {[tuple(a.shape) for a in args if isinstance(a, Tensor)]}"] += 1


def _runs_again(
    run: Callable[[Tensor], Tensor], x: Tensor, least: float, keep_costly: KeepCostly, blocks: int = 1
) -> Counter[str]:
    """Return the operations of the forward pass that run a second time when `least` FLOPs per element are kept.

    So many blocks, one after the other, run `run` under the same `context_fn`.

    What the backward pass does anyway is left out: that of the same network without a checkpoint.
    """
    counts, context_fn = [], keep_costly(least)
    try:
        inspect.signature(context_fn).bind()
    except TypeError:
        kind = type(context_fn).__name__
        raise TypeError(f"keep_costly(least) must return a function without arguments. It returns a {kind}.") from None
    for wrapped in (lambda x: checkpoint(run, x, use_reentrant=False, context_fn=context_fn), run):
        with _Operations() as operations:
            y = x
            for _ in range(blocks):
                y = wrapped(y)
            try:
                y.sum().backward()
            except RuntimeError as error:
                if blocks > 1 and _USED_UP in str(error):
                    raise RuntimeError(
                        "two blocks were given the same contexts, and the second one found them used up. Each call of "
                        f"context_fn has to make new contexts. (PyTorch: ... {_USED_UP} ...)"
                    ) from error
                raise
        counts.append(operations.seen)
    return counts[0] - counts[1]


def _pieces(seed: int) -> tuple[dict[str, float], Callable[[str], tuple[Callable[[Tensor], Tensor], Tensor]]]:
    """Return what an element costs in each kind of matmul, and a function that makes a network of one such matmul.

    All sides differ, so that no matmul of the backward pass has the shapes of one of the forward pass.
    """
    rng = random.Random(seed)
    rows, inner, columns = rng.sample(range(5, 40), 3)

    def network(kind: str) -> tuple[Callable[[Tensor], Tensor], Tensor]:
        torch.manual_seed(seed)
        x = torch.randn(3, rows, inner) if kind == "bmm" else torch.randn(rows, inner)
        b = torch.randn(3, inner, columns) if kind == "bmm" else torch.randn(inner, columns)
        bias = torch.randn(columns)
        matmuls = {
            "mm": lambda x: torch.mm(x, b),
            "bmm": lambda x: torch.bmm(x, b),
            "addmm": lambda x: torch.addmm(bias, x, b),
        }
        return lambda x: matmuls[kind](x.tanh()).exp().sin(), x.requires_grad_()

    return dict.fromkeys(_MATMULS, 2.0 * inner), network


def _again(counts: Counter[str], name: str) -> int:
    return sum(n for operation, n in counts.items() if operation.partition(" ")[0] == name)


def _wrongly_kept(seen: Evidence, expected: Evidence) -> str | None:
    for case, want in expected.items():
        got, cost = seen[case]["again"], want["cost"]
        if got != want["again"]:
            verb = "runs again; keep its result" if got > want["again"] else "does not run again; drop its result"
            return f"{case} ({cost:g} FLOPs per element, least = {want['least']:g}): it {verb}."
    return None


class CountsMatmuls(Check):
    """A matmul (m, k) x (k, n) costs 2k FLOPs per element of its result, whether it is mm, addmm or bmm."""

    hint = "args[FACTOR[op]] is the first factor of the matmul: its last dimension is the one that is summed over."

    @staticmethod
    def probe(seed: int, keep_costly: KeepCostly) -> Evidence:
        costs, network = _pieces(seed)
        seen: Evidence = {}
        for kind, cost in costs.items():
            for word, least in (("to be kept", cost - 1), ("to be dropped", cost + 0.5)):
                run, x = network(kind)
                again = _again(_runs_again(run, x, least, keep_costly), kind)
                seen[f"{kind}, {word}"] = {"again": again, "cost": cost, "least": least}
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrongly_kept(seen, expected)


class CountsAttention(Check):
    """Fused attention over T keys costs 4T FLOPs per element of its result."""

    hint = "Fused attention takes q, k and v, each (..., length, d). How many keys does each query attend to?"

    @staticmethod
    def probe(seed: int, keep_costly: KeepCostly) -> Evidence:
        rng = random.Random(seed + 1)
        seen: Evidence = {}
        for case, factor in (("as many keys as queries", 1), ("fewer keys", 3), ("more keys", 1 / 3)):
            keys = 3 * rng.randint(3, 8)
            torch.manual_seed(seed)
            q = torch.randn(2, 4, round(keys * factor), 8).requires_grad_()
            k = torch.randn(2, 4, keys, 8)
            for word, least in (("to be kept", 4 * keys - 1), ("to be dropped", 4 * keys + 1)):

                def run(q: Tensor, k: Tensor = k) -> Tensor:
                    return F.scaled_dot_product_attention(q.tanh(), k, k).exp().sin()

                again = _again(_runs_again(run, q, least, keep_costly), "attention")
                seen[f"attention, {case}, {word}"] = {"again": again, "cost": 4 * keys, "least": least}
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrongly_kept(seen, expected)


class KeepsExactlyLeast(Check):
    """What costs exactly `least` FLOPs per element is kept."""

    hint = "A result that costs exactly `least` is kept."

    @staticmethod
    def probe(seed: int, keep_costly: KeepCostly) -> Evidence:
        costs, network = _pieces(seed + 2)
        seen: Evidence = {}
        for kind, cost in costs.items():
            run, x = network(kind)
            again = _again(_runs_again(run, x, cost, keep_costly), kind)
            seen[kind] = {"again": again, "cost": cost, "least": cost}
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrongly_kept(seen, expected)


class DecidesEachTime(Check):
    """Matmuls of the same kind are told apart by their cost, and one `context_fn` serves several blocks."""

    hint = (
        "PyTorch calls the policy for each operation. Decide from the arguments of this operation.\n"
        "Each block calls context_fn once: make the contexts there, not once in keep_costly."
    )

    @staticmethod
    def probe(seed: int, keep_costly: KeepCostly) -> Evidence:
        torch.manual_seed(seed + 4)
        x, up, down = torch.randn(5, 8).requires_grad_(), torch.randn(8, 30), torch.randn(30, 8)

        def run(x: Tensor) -> Tensor:
            return torch.mm(torch.mm(x.tanh(), up).tanh(), down).sin()

        counts = _runs_again(run, x, 40, keep_costly, blocks=2)
        shapes = {"over 8 terms": [(5, 8), (8, 30)], "over 30 terms": [(5, 30), (30, 8)]}
        return {case: counts[f"mm of {shape}"] for case, shape in shapes.items()}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            if seen[case] != want:
                return (
                    f"Two blocks with the same context_fn, least = 40: {seen[case]} of the two matmuls that sum {case} "
                    f"ran again; expected {want}."
                )
        return None


class DropsTheRest(Check):
    """Everything that is neither a matmul nor attention costs 0 and is recomputed, however small `least` is."""

    hint = "An operation that is not in FACTOR and is not fused attention: PREFER_RECOMPUTE, whatever `least` is."

    @staticmethod
    def probe(seed: int, keep_costly: KeepCostly) -> Evidence:
        torch.manual_seed(seed + 3)
        x, weight = torch.randn(6, 8).requires_grad_(), torch.randn(8, 8)

        def run(x: Tensor) -> Tensor:
            y = F.gelu(F.layer_norm(x, (8,))) * 2
            return (torch.softmax(torch.mm(y, weight), -1) + y).exp().sin()

        counts = _runs_again(run, x, 1, keep_costly)
        return {name: _again(counts, name) for name in ("native_layer_norm", "gelu", "_softmax", "exp")}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name, want in expected.items():
            if seen[name] != want:
                return (
                    f"With least = 1, {name} runs again {seen[name]} times; expected {want}. Its cost is 0: drop its "
                    "result."
                )
        return None


POLICY = (CountsMatmuls, CountsAttention, KeepsExactlyLeast, DecidesEachTime, DropsTheRest)
