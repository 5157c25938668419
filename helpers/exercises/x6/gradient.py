"""X6, part 2: the gradient of an update, bit for bit the same on one rank and on two. One check of two points."""

import itertools
import random as dice
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..base import Check, Evidence
from ..probing.distance import relative_distance
from ..probing.on_ranks import on_ranks
from .job import LANES, Stream, small_model
from .states import hash_of

Answer = Callable[..., Any]
EXACT = 1e-9  # relative
ROUNDED = 1e-2  # relative: off by less than this, a sum was rounded
MICRO_BATCHES = (2, 3, 1)  # of each call
ROWS = (1, 4, 2)  # of the micro-batches where the order of summation decides
COUNTS = (3, 4, 39)  # of micro-batches: torch.sum adds a few numbers one after the other, and many in parts
THREADS = 2  # another number than a rank begins with, and than an answer that counts on one thread sets
HUGE = 2.0**80  # beside it, a number of ordinary size is lost, also where both are divided first


def _gradients(gradient: Answer, seed: int) -> Evidence:
    """One rank: three calls with a model that has dropout, one with sums in which the order decides."""
    torch.set_num_threads(1)
    model, rows, begin, modes = small_model(seed), [], [], []
    seen: list[str] = []
    model.register_forward_pre_hook(lambda _, args: rows.append(len(args[0])))
    model.register_forward_pre_hook(lambda _, args: seen.append(hash_of(args[0].detach())))
    model.register_forward_pre_hook(lambda *_: begin.append(hash_of(torch.get_rng_state())))
    model.register_forward_pre_hook(lambda module, _: modes.append(module.training))
    lanes = range(dist.get_rank(), LANES, dist.get_world_size())
    drawn: list[Evidence] = []
    streams = {lane: Stream(seed, lane, drawn) for lane in lanes}
    random = {lane: torch.Generator().manual_seed(seed + lane).get_state() for lane in lanes}
    for p in model.parameters():  # left behind by an earlier step
        p.grad = torch.full_like(p, 7.0)
    before = hash_of(*model.parameters())
    calls = []
    for micro_batches in MICRO_BATCHES:
        torch.manual_seed(999)
        gradient(model, streams, random, micro_batches)
        by_lane = {str(lane): [draw["x"] for draw in drawn if draw["lane"] == lane] for lane in lanes}
        calls.append(
            {
                "gradient": _flat(model),
                "random": {str(lane): hash_of(random[lane]) for lane in lanes},
                "drawn": by_lane,
                "rows": rows[:],
                "in order": all([x for x in seen if x in draws] == draws for draws in by_lane.values()),
                "begin": sorted(begin),
                "training": [all(modes), model.training],
                "kept": hash_of(*model.parameters()) == before,
            }
        )
        rows.clear()
        seen.clear()
        begin.clear()
        modes.clear()
        drawn.clear()
    linear = nn.Linear(len(_FEATURES), 4, bias=False).double()
    nn.init.zeros_(linear.weight)  # the logits are zero, so the gradient is linear in the rows
    orders = []
    for count in COUNTS:
        streams = {lane: _where_order_decides(seed, lane) for lane in lanes}
        gradient(linear, streams, random, count)
        orders.append(_flat(linear))
    return {"calls": calls, "orders": orders, "unusual": _of_an_unusual_model(gradient, seed, lanes)}


def _flat(model: nn.Module) -> list[float]:
    """Return the gradients of all parameters as numbers; none if one has no gradient."""
    gradients = [p.grad for p in model.parameters()]
    return [] if None in gradients else torch.cat([g.flatten() for g in gradients]).tolist()


class _Unusual(nn.Module):
    """A model with what few models have: a number as a parameter, one that does nothing, a tied one, a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.tied = (nn.Linear(4, 4) for _ in range(3))
        self.tied.weight = self.first.weight
        self.number = nn.Parameter(torch.tensor(1.5))
        self.idle = nn.Parameter(torch.ones(4))  # its gradient is zero
        self.of_lane_0 = nn.Parameter(torch.ones(4))  # in lane 1 its gradient is zero
        self.silenced = nn.Dropout(0.5)
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("total", torch.zeros(4))  # of the inputs: each rank has its own
        self.waiting, self.graphs = 0, 0  # graphs whose backward pass has not come yet, and the most of them

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.total += x.detach().sum(0)
        self.waiting += 1
        self.graphs = max(self.graphs, self.waiting)
        hidden = self.second(torch.tanh(self.first(self.silenced(x)))) * self.number
        out = self.tied(hidden) + 0 * self.idle + self.of_lane_0 * x[:, :1].clamp(min=0)
        out.register_hook(self._is_backward)
        return out

    def _is_backward(self, _: Tensor) -> None:
        self.waiting -= 1


def _of_an_unusual_model(gradient: Answer, seed: int, lanes: range) -> Evidence:
    """One rank: one call with the unusual model, and what else has changed."""
    torch.manual_seed(seed)
    model = _Unusual().double()
    model.silenced.eval()
    random = {lane: torch.Generator().manual_seed(seed + lane).get_state() for lane in lanes}
    torch.set_num_threads(THREADS)
    gradient(model, {lane: _rows_of(seed, lane) for lane in lanes}, random, 2)
    return {
        "gradients": {
            name: [] if p.grad is None else p.grad.flatten().tolist() for name, p in model.named_parameters()
        },
        "count": model.count.item(),
        "total": model.total.tolist(),
        "graphs": model.graphs,
        "modes": [module.training for module in model.modules()],
        "hooks": sum(len(p._backward_hooks or ()) for p in model.parameters()),
        "settings": {
            "the default dtype": str(torch.get_default_dtype()),
            "torch.is_grad_enabled()": torch.is_grad_enabled(),
            "the number of threads": torch.get_num_threads(),
            "the use of deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
            "the precision of FP32 matmuls": torch.get_float32_matmul_precision(),
            "anomaly detection": torch.is_anomaly_enabled(),
        },
    }


def _rows_of(seed: int, lane: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Return a lane's micro-batches for the unusual model: the sign of the first feature is the lane's."""
    generator = torch.Generator().manual_seed(10 * seed + lane)
    while True:
        x = torch.randn(3, 4, generator=generator, dtype=torch.float64)
        x[:, 0] = x[:, 0].abs() * (1 - 2 * lane)
        yield x, torch.randint(4, (3,), generator=generator)


# By feature and lane, what the micro-batches hold: "+" and "-" are huge numbers, "a" is an ordinary one.
_FEATURES = (("aaa", "aaa"), ("a+-", "+-a"), ("+-a", "a+-"), ("+-a", "+-a"), ("a+-", "aaa"), ("aaa", "a+-"))


def _where_order_decides(seed: int, lane: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Return a lane's micro-batches, again and again: in one of them, all rows are alike."""
    ordinary = dice.Random(10 * seed + lane)
    for number, rows in itertools.cycle(enumerate(ROWS)):
        values = [{"+": HUGE, "-": -HUGE}.get(lanes[lane][number], ordinary.uniform(500, 1000)) for lanes in _FEATURES]
        yield torch.tensor([values] * rows, dtype=torch.float64), torch.zeros(rows, dtype=torch.int64)


class SameBitsOnOneRankAndTwo(Check):
    """The gradient is the mean over both lanes' micro-batches, with the same bits on one rank and on two."""

    points = 2
    hint = (
        "Floating-point sums depend on the order: (a + b) + (c + d) is not ((a + b) + c) + d.\n"
        "Accumulate each lane's gradients from zero in p.grad, and add the two lanes' sums once at the end.\n"
        "torch.set_rng_state(random[lane]) before a lane's micro-batches; torch.get_rng_state() after them."
    )

    @staticmethod
    def probe(seed: int, gradient: Answer) -> Evidence:
        return {str(ranks): on_ranks(_gradients, ranks, gradient, seed) for ranks in (2, 1)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for ranks, want in expected.items():
            for rank, (mine, right) in enumerate(zip(seen[ranks], want, strict=True)):
                for number, (got, ideal) in enumerate(zip(mine["calls"], right["calls"], strict=True), 1):
                    where = f"rank {rank} of {ranks}, call {number}, micro_batches={MICRO_BATCHES[number - 1]}"
                    others = [every["calls"][number - 1]["gradient"] for every in seen[ranks]]
                    wrong = _wrong_call(got, ideal, others, seen["2"][0]["calls"][number - 1]["gradient"])
                    if wrong:
                        return f"{where}: {wrong}"
                for count, got, ideal in zip(COUNTS, mine["orders"], right["orders"], strict=True):
                    wrong = _wrong_order(got, ideal)
                    if wrong:
                        return f"rank {rank} of {ranks}, {count} micro-batches: {wrong}"
                wrong = _wrong_model(mine["unusual"], right["unusual"], seen["2"][0]["unusual"]["gradients"])
                if wrong:
                    return f"rank {rank} of {ranks}, {wrong}"
        return None


def _wrong_call(got: Evidence, ideal: Evidence, ranks: list[list[float]], first: list[float]) -> str | None:
    """Judge a call; `ranks` are the gradients of all ranks of this run, `first` that of rank 0 of two."""
    if got["drawn"] != ideal["drawn"]:
        counts = {lane: len(draws) for lane, draws in got["drawn"].items()}
        right = {lane: len(draws) for lane, draws in ideal["drawn"].items()}
        return f"micro-batches drawn by lane: {counts}; it should be {right}."
    if got["rows"] != ideal["rows"]:
        return f"the model saw {got['rows']} rows at a time; it should see one micro-batch of 4."
    if got["training"] != ideal["training"]:
        return (
            "the model was called, or left, in evaluation mode, in which dropout draws nothing. Leave its mode alone."
        )
    if got["begin"] != ideal["begin"]:
        return "the model was called in a random state that is not its lane's."
    off = relative_distance(got["gradient"], ideal["gradient"]) if got["gradient"] else 1.0
    if not off <= EXACT:
        return _why_off(got, ideal, ranks, off)
    for lane, state in ideal["random"].items():
        if got["random"][lane] != state:
            return f"random[{lane}] is not the random state that lane {lane} left."
    if got["gradient"] != first:
        differing = sum(a != b for a, b in zip(got["gradient"], first, strict=True))
        return f"{differing} of {len(first)} numbers differ in their last bits from those of rank 0 of 2."
    if not got["kept"]:
        return "the weights have changed; only gradients should change."
    return None


def _why_off(got: Evidence, ideal: Evidence, ranks: list[list[float]], off: float) -> str:
    """Say how a gradient differs from the right one by `off`, and why if that shows."""
    if not got["gradient"]:
        return "a parameter has no gradient."
    if not got["in order"]:
        return "the model did not see a lane's micro-batches in the order in which they were drawn."
    if off < ROUNDED:
        return f"the gradient is off by {off:.2g} (relative), as if rounded to fewer bits than FP64 has."
    sizes = [sum(x * x for x in values) ** 0.5 for values in (got["gradient"], ideal["gradient"])]
    apart = "" if all(gradient == ranks[0] for gradient in ranks) else " The ranks have different gradients."
    return (
        f"the gradient's norm is {sizes[0] / sizes[1]:.4g} times the right one, and it is off by {off:.2g} (relative)."
        f"{apart}"
    )


def _wrong_order(got: list[float], ideal: list[float]) -> str | None:
    """Judge the gradient of the linear model; its first feature has ordinary numbers only."""
    every = len(_FEATURES)
    if not got or not relative_distance(got[::every], ideal[::every]) <= EXACT:
        return (
            f"micro-batches of {', '.join(map(str, ROWS))} rows: the gradient is not the mean of theirs. "
            "Each micro-batch counts the same, whatever its number of rows, and nothing is clipped."
        )
    if not all(relative_distance(got[n::every], ideal[n::every]) <= EXACT for n in range(every)):
        return (
            "the sums are not formed in the contract's order: with huge numbers that cancel, the gradient "
            "differs. In each lane, add one micro-batch after the other from zero; then lane 0's sum plus lane 1's."
        )
    return None


_SHOWS = {
    "first.weight": "a weight that two layers share",
    "number": "a parameter without dimensions",
    "idle": "a parameter whose gradient is zero",
    "of_lane_0": "a parameter whose gradient is zero in lane 1",
}


def _wrong_model(got: Evidence, ideal: Evidence, first: dict[str, list[float]]) -> str | None:
    """Judge the gradients of the unusual model, and what else has changed."""
    where = "a model with tied weights and a layer in evaluation mode"
    for name, value in ideal["settings"].items():
        if got["settings"][name] != value:
            return (
                f"{where}: {name} is {got['settings'][name]} afterwards, not {value}. Leave PyTorch's settings alone."
            )
    if got["modes"] != ideal["modes"]:
        return f"{where}: that layer, or another, is in another mode afterwards. Leave the modes of modules alone."
    for name, right in ideal["gradients"].items():
        mine = got["gradients"][name]
        what = _SHOWS.get(name, f"{name}, which has the shape of another parameter")
        if not mine:
            return f"{where}: {what} has no gradient; it should have one, even if all its numbers are zero."
        if not relative_distance(mine, right) <= EXACT:
            return f"{where}: the gradient of {what} is not the mean over both lanes."
        if mine != first[name]:
            return f"{where}: the gradient of {what} differs in its last bits from that of rank 0 of 2."
    if got["count"] != ideal["count"]:
        return f"{where}: a buffer that counts forward passes shows {got['count']}; it should show {ideal['count']}."
    if not relative_distance(got["total"], ideal["total"]) <= EXACT:
        return f"{where}: a buffer that adds up inputs is not what this rank's own forward passes made of it."
    if got["graphs"] > 1:
        return (
            f"{where}: {got['graphs']} forward passes came before a backward pass, so all their graphs were in memory."
        )
    if got["hooks"]:
        return f"{where}: {got['hooks']} hooks are left on its parameters, and each call adds as many."
    return None


GRADIENT = (SameBitsOnOneRankAndTwo,)
