"""Checks of part 2: an update of a sharded model. All judge one start of four ranks, and one of two.

What two ranks can show is asked of two: it takes half the time.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef

from ...meter.recorder import MemoryMeter
from ...ranks.collectives import Collectives
from ..base import Check, Evidence
from ..probing.distance import relative_distance
from ..probing.lowest import lowest
from ..probing.on_ranks import on_ranks
from .subject import BLOCKS, LENGTH, VOCABULARY, WIDTH, Model, mesh_of, sharded

EXACT = 1e-4  # relative, in FP32
IGNORED = -100
EVERY = 5  # of the weights' movements, how many apart are compared: a report of all would take longer than an update
OFF = 1e6  # a max_norm that no gradient reaches
MANY_ROWS = 512  # of a micro-batch where activations are measured: its logits outweigh what gloo lets go of late
COUNTED_OF_MANY = 4_098  # of a rank's targets there: neither FP16 nor BF16 has this number
LOGITS = 4 * 4 * MANY_ROWS * LENGTH * VOCABULARY  # bytes, of four micro-batches, in FP32
WIDE, FEW_ROWS = 254, 4  # where gradients are measured: whole ones outweigh everything else
WHOLE = 4 * sum(p.numel() for p in Model(WIDE).parameters())  # bytes of its gradients
CHANGED = {
    "list": "the list of micro-batches has a different length afterwards",
    "tokens": "the tokens of a micro-batch have changed afterwards",
    "targets": "the targets of a micro-batch have changed afterwards",
    "generator": "the state of the random generator afterwards is not the one that the layers' draws have led to",
}
FLAT, NEAR = 1e-4, 0.75  # factors: of the last two layers' weights, and of the norm
DIVIDED = "Are old gradients cleared? What is each loss divided by? What does fully_shard do with gradients?"
IDLE = (
    "If only this case is wrong: does what is frozen, or the unused layer, move? Weight decay moves a parameter "
    "that has a gradient, even one of zeros."
)
STILL = "The weights do not move. Does the optimizer step?"
LENGTHENED = "The direction is right, the length is wrong. A gradient shorter than max_norm stays as it is."
SHORTENED = (
    "Only clipped updates are wrong. A gradient that is too long is multiplied by one factor, which follows from the "
    "norm over all shards of all parameters. This happens once, before the optimizer steps."
)


@dataclass(frozen=True)
class _Case:
    """What an answer is called with.

    Attributes:
        rows: of each micro-batch of rank 0; another rank begins elsewhere in this tuple and goes round.
        ignored: the share of targets that do not count, on each rank.
        empty: this micro-batch has no target that counts, on the ranks of `where`.
        where: all ranks, or some.
        rate: the learning rate of SGD.
        flat: whether all gradients are small.
        near: whether, after the first step, max_norm is a little less than the norm that the answer has returned last.
        idle: whether a layer and a parameter are frozen, and a layer is not used.
        again: whether the first micro-batch is the last one, too, the very same tensors.
        mesh: sizes of its dimensions.
        ranks: how many it runs on.
    """

    rows: tuple[int, ...] = (2, 2, 2)
    ignored: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)
    empty: int | None = None
    where: tuple[int, ...] = (0, 1, 2, 3)
    max_norm: float = OFF
    rate: float = 1.0
    flat: bool = False
    near: bool = False
    adam: bool = False
    steps: int = 1
    old_gradients: bool = False
    idle: bool = False
    again: bool = False
    mesh: tuple[int, ...] = (2,)

    @property
    def ranks(self) -> int:
        return math.prod(self.mesh)


FOUR = (4,)
EVEN = {
    "3 micro-batches": _Case(mesh=FOUR),
    # 2 ranks are what an answer takes the 4 of other cases for
    "3 micro-batches on 2 ranks, the first one again as the last": _Case(again=True),
    "AdamW, 2 steps": _Case((3,), adam=True, steps=2),
    "old gradients, some infinite": _Case(old_gradients=True),
    "a frozen layer, a frozen parameter and an unused layer": _Case((2, 1), adam=True, old_gradients=True, idle=True),
    "a loss that is nearly flat": _Case((2,), rate=1e3, flat=True),
}
COUNTED = {
    "micro-batches of different sizes": _Case((3, 1, 2, 1)),
    "targets that do not count": _Case((2, 3), (0.1, 0.7)),
    "a rank without targets": _Case((2, 2), (0.3, 1.0, 0.2, 0.5), mesh=FOUR),
    "a last micro-batch without targets": _Case((2, 1), empty=1),
    "a last micro-batch without targets on one rank": _Case((2, 1), empty=1, where=(2,), mesh=FOUR),
    "targets that do not count, 2 x 2 ranks": _Case((2,), (0.1, 0.2, 0.7, 0.9), mesh=(2, 2)),
}
CLIPPED = {
    "clipped to a thousandth": _Case(max_norm=0.001, rate=50.0),
    "clipped a little, 2 steps": _Case((2,), rate=0.1, steps=2, near=True),
    "clipped, targets that do not count, AdamW": _Case((2, 1), (0.0, 0.8), max_norm=0.1, adam=True),
    "clipped, 2 x 2 ranks": _Case(max_norm=0.05, mesh=(2, 2)),
    "an infinite max_norm": _Case((2,), max_norm=math.inf),
}
CASES = EVEN | COUNTED | CLIPPED


def _micro_batches(seed: int, case: _Case, step: int) -> list[tuple[Tensor, Tensor]]:
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(1000 * seed + 10 * step + rank)
    pairs = []
    first = rank % len(case.rows)
    for i, rows in enumerate(case.rows[first:] + case.rows[:first]):
        tokens, targets = torch.randint(VOCABULARY, (2, rows, LENGTH), generator=generator).unbind()
        share = 1.0 if i == case.empty and rank in case.where else case.ignored[rank]
        hidden = torch.rand(targets.shape, generator=generator) < share
        pairs.append((tokens, targets.masked_fill(hidden, IGNORED)))
    return [*pairs[:-1], pairs[0]] if case.again else pairs


def _mine(model: nn.Module) -> Tensor:
    """Return this rank's shards: the judge puts those of the ranks together, which needs no collectives."""
    return torch.cat([p.detach().to_local().flatten() for p in model.parameters()])


def _short(number: float) -> float:
    """Return five digits of a number, more than are compared: all of them make a report twice as long."""
    return float(f"{number:.5g}")


class _Passes:
    """Watches the forward passes of a model: each draws a number, as dropout would, and leaves an activation.

    Attributes:
        drawn: a generator that draws the same numbers, and that an answer cannot reach.
        held: how many activations of earlier passes were alive, at most, when a pass began.
    """

    def __init__(self, model: nn.Module) -> None:
        self.drawn, self.held = torch.Generator(), 0
        self._left: list[StorageWeakRef] = []
        self._hooks = [
            model.register_forward_pre_hook(lambda *_: self._begins()),
            model.head.register_forward_pre_hook(lambda _, given: self._leaves(given[0])),  # which backward needs
        ]

    def a_call(self) -> None:
        """Forget the passes before: the next ones belong to one call."""
        self._left.clear()
        self.drawn.set_state(torch.get_rng_state())

    def _begins(self) -> None:
        self.held = max(self.held, sum(not left.expired() for left in self._left))
        torch.rand(())
        torch.rand((), generator=self.drawn)

    def _leaves(self, activation: Tensor) -> None:
        self._left.append(StorageWeakRef(activation.untyped_storage()))

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()


def _optimizer(model: nn.Module, case: _Case) -> torch.optim.Optimizer:
    parameters = list(model.parameters())
    groups = [{"params": parameters[::2]}, {"params": parameters[1::2]}]
    if case.adam:
        return torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1)
    return torch.optim.SGD(groups, lr=case.rate, momentum=0.9)


def _one(train_step: Callable[..., Any], seed: int, case: _Case) -> Evidence:
    """One rank: the steps of a case."""
    mesh = mesh_of(case.mesh)
    model = sharded(seed, mesh, idle=case.idle)
    optimizer = _optimizer(model, case)
    if case.flat:
        with torch.no_grad():
            for p in (model.scale.gain, model.head.weight):
                p.to_local().mul_(FLAT)
    if case.old_gradients:
        for p in model.parameters():
            p.grad = torch.full_like(p, math.inf if p.ndim == 1 else 7.0)
    before = _mine(model)
    returned, counts, changed = [], [], []
    still: list[int] = []  # layers that run in evaluation mode, by their place in model.modules()
    hooks = [
        layer.register_forward_pre_hook(lambda it, _, place=place: None if it.training else still.append(place))
        for place, layer in enumerate(model.modules())
    ]
    passes = _Passes(model)
    for step in range(case.steps):
        given, same = _micro_batches(seed, case, step), _micro_batches(seed, case, step)
        last = returned[-1][1] if returned and returned[-1] else None
        limit = NEAR * last if case.near and isinstance(last, float) else case.max_norm
        passes.a_call()
        with Collectives() as sent:
            result = train_step(model, optimizer, given, limit)
        changed.append(_what_changed(given, same))
        if not torch.equal(torch.get_rng_state(), passes.drawn.get_state()):
            changed.append("generator")
        pair = isinstance(result, tuple | list) and len(result) == 2
        returned.append([x if isinstance(x, float) else type(x).__name__ for x in result] if pair else None)
        counts.append({name: sent.count(name) for name in ("reduce_scatter", "all_gather", "all_reduce")})
        large = [call.nbytes for call in sent.calls if call.name not in ("reduce_scatter", "all_gather")]
        counts[-1]["other"] = sum(large)
    for hook in (*hooks, passes):
        hook.remove()
    first = len(case.mesh) == 1 or not mesh.get_coordinate()[0]  # replicas move alike
    moved = (_mine(model) - before)[::EVERY].tolist() if first else []
    left = [place for place, layer in enumerate(model.modules()) if not layer.training]
    with Collectives() as sent:  # what the caller's own backward pass would reduce
        out = model(torch.zeros(1, LENGTH, dtype=torch.int64))
        gathered = [n for n, p in model.named_parameters() if "blocks." in n and not isinstance(p, DTensor)]
        out.sum().backward()
        gathered += [n for n, p in model.named_parameters() if not isinstance(p, DTensor)]
    return {
        "moved": [_short(number) for number in moved],
        "returned": returned,
        "counts": counts,
        "after": sent.count("reduce_scatter"),
        "replicas": sent.count("all_reduce"),
        "gathered": gathered[:1],
        "held": passes.held,
        "modes": [still[:1], left[:1]],
        "changed": next(filter(None, changed), ""),
    }


def _what_changed(given: list[tuple[Tensor, Tensor]], same: list[tuple[Tensor, Tensor]]) -> str:
    """Return what an answer has changed in the micro-batches that it was given, a key of CHANGED; "" if nothing."""
    if len(given) != len(same):
        return "list"
    for mine, right in zip(given, same, strict=True):
        for what, a, b in zip(("tokens", "targets"), mine, right, strict=True):
            if not torch.equal(a, b):
                return what
    return ""


class _Peaks(NamedTuple):
    """The peak of a call with two micro-batches, and by how much higher that of six is, in bytes."""

    peak: int
    growth: int

    def above(self, most: "_Peaks") -> int:
        """Return by how many bytes one of the two is higher than it may be; negative if neither is."""
        return max(mine - limit for mine, limit in zip(self, most, strict=True))


ANY = 2**62  # bytes: what may be as high as it likes
MOST_LOGITS = _Peaks(ANY, LOGITS // 2)
MOST_GRADIENTS = _Peaks(4 * WHOLE, 2 * WHOLE)  # gathered weights, one gradient, shards of both, what is let go of late


def _peaks(train_step: Callable[..., Any], seed: int, most: _Peaks, rows: int, width: int) -> tuple[_Peaks, Any]:
    """Return the peaks of a model, and what a call with two micro-batches returns: many targets are counted.

    What gloo lets go of late is in them, so peaks that are higher than `most` are measured again.
    """
    found: list[tuple[_Peaks, Any]] = []

    def measure() -> int:
        found.append(_peaks_once(train_step, seed, rows, width))
        return found[-1][0].above(most)

    lowest(measure, 0)
    return min(found, key=lambda one: one[0].above(most))


def _peaks_once(train_step: Callable[..., Any], seed: int, rows: int, width: int) -> tuple[_Peaks, Any]:
    peaks, results = [], []
    for count in (2, 6):
        case = _Case((rows,) * count)
        model = sharded(seed, mesh_of(case.mesh), width)
        optimizer = _optimizer(model, case)
        pairs = _micro_batches(seed, case, 0)
        for i, (_, targets) in enumerate(pairs):
            targets.view(-1)[max(0, COUNTED_OF_MANY - i * targets.numel()) :] = IGNORED
        with MemoryMeter(device=torch.device("cpu"), by_category=False) as meter:
            results.append(train_step(model, optimizer, pairs, OFF))
        peaks.append(meter.peak_bytes)
    return _Peaks(peaks[0], peaks[1] - peaks[0]), results[0]


def _cases(train_step: Callable[..., Any], seed: int) -> Evidence:
    """One rank: the cases for as many ranks as there are."""
    ranks = dist.get_world_size()
    return {name: _one(train_step, seed, case) for name, case in CASES.items() if case.ranks == ranks}


def _cases_and_peaks(train_step: Callable[..., Any], seed: int) -> Evidence:
    """One rank: these cases, and how peaks grow with the number of micro-batches."""
    seen = _cases(train_step, seed)
    logits, result = _peaks(train_step, seed, MOST_LOGITS, MANY_ROWS, WIDTH)
    loss = result[0] if isinstance(result, tuple | list) and len(result) == 2 else None
    gradients, _ = _peaks(train_step, seed, MOST_GRADIENTS, FEW_ROWS, WIDE)
    return seen | {
        "logits": logits.growth,
        "loss of many": loss if isinstance(loss, float) else type(loss).__name__,
        "gradients": list(gradients),
    }


def _of(evidence: Evidence, name: str) -> list[Evidence]:
    """Return what the ranks of a case have seen."""
    return [seen[name] for seen in evidence["pair" if CASES[name].ranks == 2 else "four"]]


def _where_to_look(length: float, cosine: float, case: _Case, ask: str) -> str:
    """Return what an update of this relative length and direction asks about."""
    if length < EXACT:
        return STILL
    if case.idle:
        return IDLE
    if case.max_norm == math.inf and length != length:
        return "What becomes of the factor where max_norm is infinite?"
    return LENGTHENED if case.max_norm == OFF and length > 1_000 and cosine > 1 - EXACT else ask


def _wrong(seen: Evidence, expected: Evidence, cases: dict[str, _Case], ask: str = DIVIDED) -> str | None:
    """Say what is wrong with the updates of some cases, or with what they return; `ask` is where to look."""
    for name in cases:
        ranks = list(zip(_of(seen, name), _of(expected, name), strict=True))
        got, want = ([n for one in each for n in one["moved"]] for each in zip(*ranks, strict=True))
        if not relative_distance(got, want) <= EXACT:
            a, b = torch.tensor(got), torch.tensor(want)
            cosine, length = torch.cosine_similarity(a, b, dim=0).item(), (a.norm() / b.norm()).item()
            moved = f"the weights move {length:.4g} times as far as those of one process (cosine {cosine:.4f})"
            if length != length:
                moved = "the weights become NaN"
            return f"{name}: {moved}. {_where_to_look(length, cosine, cases[name], ask)}"
        for rank, (mine, right) in enumerate(ranks):
            for step, (pair, wanted) in enumerate(zip(mine["returned"], right["returned"], strict=True), 1):
                if pair is None:
                    return f"{name}: train_step should return a pair, the loss and the norm."
                for what, a, b in zip(("loss", "norm"), pair, wanted, strict=True):
                    if not isinstance(a, float):
                        return f"{name}: the {what} is a {a}; it should be a float."
                    if not abs(a - b) <= EXACT * abs(b):
                        return f"{name}, step {step}: rank {rank} returns the {what} {a:.6g}; it should be {b:.6g}."
    return None


def _wrong_mode(seen: Evidence) -> str | None:
    """Say which layer was not in training mode."""
    for name in CASES:
        for rank, one in enumerate(_of(seen, name)):
            for layers, when in zip(one["modes"], ("runs", "is left"), strict=True):
                if layers:
                    layer = [of or "the model" for of, _ in Model().named_modules()][layers[0]]
                    return f"{name}: on rank {rank}, {layer} {when} in evaluation mode. Leave the mode as it is."
    return None


def _wrong_data(seen: Evidence) -> str | None:
    """Say which of the caller's micro-batches were changed."""
    for name in CASES:
        for rank, one in enumerate(_of(seen, name)):
            if one["changed"]:
                changed = CHANGED[one["changed"]]
                return f"{name}, rank {rank}: {changed}. The caller still uses it: leave it as it is."
    return None


def _wrong_count(seen: Evidence, expected: Evidence) -> str | None:
    """Say that the loss over many targets is not their mean."""
    for rank, (one, right) in enumerate(zip(seen["pair"], expected["pair"], strict=True)):
        got, want = one["loss of many"], right["loss of many"]
        if not isinstance(got, float) or not abs(got - want) <= EXACT * abs(want):
            said = f"{got:.6g}" if isinstance(got, float) else f"a {got}"
            return (
                f"rank {rank}: with {2 * COUNTED_OF_MANY:,} targets that count on both ranks together, the loss is "
                f"{said}; it should be {want:.6g}. Is the count exact in the dtype that adds it up?"
            )
    return None


def _wrong_messages(got: Evidence, want: Evidence, rank: int) -> str | None:
    """Say what is wrong with what a rank sent in a case, and with what it would send afterwards."""
    for step, counts in enumerate(got["counts"], 1):
        if counts["reduce_scatter"] != BLOCKS + 1:
            return (
                f", step {step}: rank {rank} reduces {counts['reduce_scatter']} times; for {BLOCKS + 1} units, "
                f"{BLOCKS + 1} reductions are enough."
            )
        if counts["other"] > want["counts"][step - 1]["other"] + 4_000:
            return (
                f", step {step}: {counts['other']:,} bytes go through other collectives; counts, losses and squared "
                "norms are only a few numbers."
            )
    if got["after"] != BLOCKS + 1 or got["replicas"] != want["replicas"]:
        return ": gradient synchronization is off, or partly off, when train_step returns; it must be on again."
    if got["gathered"]:
        return (
            f": {got['gathered'][0]} stays gathered after a pass that follows train_step. Which switch has to be set "
            "back?"
        )
    return None


class _OnStep(Check):
    points = 1

    @staticmethod
    def probe(seed: int, train_step: Any) -> Evidence:
        four = on_ranks(_cases, 4, train_step, seed)
        return {"four": four, "pair": on_ranks(_cases_and_peaks, 2, train_step, seed)}


class UpdateOfOneProcess(_OnStep):
    """Accumulating over all ranks' micro-batches gives the same update as one process, step after step."""

    hint = (
        "fully_shard takes the mean of the ranks' gradients, and micro-batches add up. What must each loss be divided "
        "by?\n"
        "Clear the gradients first, step once, and return plain floats that are the same on each rank."
    )

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong(seen, expected, EVEN) or _wrong_mode(seen) or _wrong_data(seen)


class TargetsOfAllRanksWeighTheSame(_OnStep):
    """Every target that counts has the same weight, whatever its micro-batch or rank."""

    hint = (
        "Sum the losses, and divide by the count of all ranks: one all_reduce of one number.\n"
        "A rank without targets takes part in every collective."
    )

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong(seen, expected, COUNTED) or _wrong_count(seen, expected)


class ClipsByTheJointNorm(_OnStep):
    """The gradient is clipped by the norm over the shards of all ranks, once, after the last micro-batch."""

    hint = (
        "The norm of local shards covers this rank alone. The norm of DTensors covers all ranks, and is a DTensor.\n"
        "What does p.grad hold while gradient synchronization is off?"
    )

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        right = not _wrong(seen, expected, EVEN | COUNTED)
        return _wrong(seen, expected, CLIPPED, ask=SHORTENED if right else DIVIDED)


class ReducesOncePerUnit(_OnStep):
    """Each unit's gradient is reduced once per call; activations of one micro-batch and one full gradient are held."""

    hint = (
        "set_requires_gradient_sync before each forward pass: on for the last micro-batch only.\n"
        "Call backward() for each micro-batch before the next forward pass."
    )

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name in CASES:
            for rank, (got, want) in enumerate(zip(_of(seen, name), _of(expected, name), strict=True)):
                wrong = _wrong_messages(got, want, rank)
                if wrong:
                    return f"{name}{wrong}"
        for got in seen["pair"]:
            if got["logits"] > MOST_LOGITS.growth:
                return (
                    f"with 6 micro-batches instead of 2 the peak is {got['logits']:,} bytes higher; it should be the "
                    f"same. (The logits of 4 micro-batches take {LOGITS:,} bytes.) Graphs or logits of several "
                    "micro-batches are alive at once."
                )
            peak, growth = got["gradients"]
            if growth > MOST_GRADIENTS.growth:
                return (
                    f"with 6 micro-batches instead of 2 the peak of a wide model is {growth:,} bytes higher; it should "
                    f"be the same. (Its gradient takes {WHOLE:,} bytes.) Gradients of several micro-batches are alive "
                    "at once."
                )
            if peak > MOST_GRADIENTS.peak:
                return (
                    f"the peak of a wide model is {peak:,} bytes; this check allows {MOST_GRADIENTS.peak:,}. (Its "
                    f"gradient takes {WHOLE:,} bytes in FP32.) More than one full gradient is alive at once. Does the "
                    "norm need any in full, or in FP64?"
                )
        for name in CASES:
            for rank, got in enumerate(_of(seen, name)):
                if got["held"] > 0:
                    return (
                        f"{name}: on rank {rank}, the micro-batch before still has its graph and activations "
                        "when the model runs on the next one. What keeps a graph after its backward pass?"
                    )
        return None


STEP = (UpdateOfOneProcess, TargetsOfAllRanksWeighTheSame, ClipsByTheJointNorm, ReducesOncePerUnit)
