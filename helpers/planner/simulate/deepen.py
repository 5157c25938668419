"""The step of a deep model, from those of two shallow copies: blocks that are alike do alike, over and over.

A step is a sequence of events: memory is taken, memory is freed. One more block inserts the same events in each place
where blocks take turns: in the forward pass, in the backward pass, in each operation of the optimizer. So the
difference between two shallow copies shows what is inserted and where. Which memory an inserted event frees, and which
block's module it belongs to, moves by the same number with each further block. The result is the deep model's own
sequence, event by event; where one rule does not hold, there is none, and the deep model is run itself.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

from torch import nn

from ...meter.count import Block
from ...meter.operation import Op
from ..catalog.models import ModelSpec, spec_of
from ..config import ParallelConfig, TrainingConfig
from .blocks import find_blocks
from .model import build
from .steps import Simulation, simulate
from .strategy import strategy_of
from .work_count import RepeatedWork

FEWEST = 2  # blocks of the shallowest copy: a first and a last one
COPIES = 3  # that are tried before the model is run itself
INPUTS = "inputs and other"
AGAIN = 4  # events that both copies have alike after an insertion
_NUMBERS = ("flops", "recomputed_flops", "sent", "host_bytes", "parameters", "trained")
_NUMBERS += ("parameter_bytes", "trained_bytes", "state_bytes")
_COUNT = re.compile(r"(?<![^.])\d+(?![^. ])")  # the number of a block, in a module's name


def simulate_deep(recipe: TrainingConfig, tell: Callable[[str], None] = lambda stage: None) -> Simulation:
    """Return what `simulate` returns, from shallow copies where the model's blocks are alike.

    Args:
        recipe: what to run.
        tell: called with the name of each stage as it begins.

    Raises:
        RecipeError: as `simulate`.
    """
    if recipe.ranks > 1 and recipe.shard == "none" and recipe.offload != "all":
        return _with_buckets(simulate_deep(replace(recipe, parallel=ParallelConfig()), tell), recipe)
    spec = spec_of(recipe)
    copies: list[Simulation] = []
    few, step = depths(recipe, spec)
    for layers in (few + i * step for i in range(COPIES if step else 0)):
        if layers >= spec.layers:
            break
        tell(f"running {layers} of {spec.layers} blocks")
        copies.append(simulate(recipe, spec=spec.with_layers(layers)))
        if len(copies) > 1:
            deep = deepened(*copies[-2:], (spec.layers - layers) // step + 1)
            if deep:
                return deep
    return simulate(recipe, tell)


def depths(recipe: TrainingConfig, spec: ModelSpec) -> tuple[int, int]:
    """Return how many blocks the shallowest copy has that shows how the model goes on, and how many more the next has.

    The step is 0 where the model must be run itself.
    """
    if recipe.checkpointing == "sqrt" or spec.layers <= 2 * FEWEST or not strategy_of(recipe).grows_by_blocks:
        return 0, 0
    period = _period(spec.build(recipe, recipe.weight_dtype), spec.layers)
    step = math.lcm(recipe.stride or 1, period)
    rest = spec.layers % step if step else 0
    few = rest + step * math.ceil((FEWEST * period - rest) / step) if step else 0
    return (few, step) if 2 * few + step < spec.layers else (0, 0)


def _with_buckets(alone: Simulation, recipe: TrainingConfig) -> Simulation:
    """Return the step of a rank of `recipe` from that of its model `alone`: DDP's buckets come before the inputs."""
    spec = spec_of(recipe)
    strategy = strategy_of(recipe)
    model = build(recipe, spec, lambda: (nullcontext(), nullcontext()))
    buckets = strategy.buckets([p for p in model.parameters() if p.requires_grad])
    at = min(block.start for block in alone.blocks if block.tenant == INPUTS)
    shift = len(buckets)
    later = [replace(b, start=b.start + shift, end=b.end and b.end + shift) for b in alone.blocks if b.start >= at]
    op = Op(at, "forward", "aten.empty.memory_format", "")
    new = [Block(0, bucket.nbytes, "gradients", at + i, op) for i, bucket in enumerate(buckets)]
    blocks = [block for block in alone.blocks if block.start < at] + new + later
    sent = strategy.bytes_sent(alone.parameter_bytes, alone.trained_bytes)
    return replace(alone, recipe=recipe, blocks=blocks, sent=sent)


def deepened(few: Simulation, more: Simulation, further: int) -> Simulation | None:
    """Return the step that lies `further` times as far beyond `few` as `more` does; None where no rule is found."""
    works = _works(few.works, more.works, further)
    blocks = _Growth(_Events(few.blocks), _Events(more.blocks), further).blocks()
    if works is None or blocks is None:
        return None
    grown = {name: _line(getattr(few, name), getattr(more, name), further) for name in _NUMBERS}
    return replace(few, blocks=blocks, works=works, seconds=few.seconds + more.seconds, **grown)


def _line(few: float, more: float, further: int) -> float:
    return few + further * (more - few)


# -- are the blocks alike?


def _period(model: nn.Module, layers: int) -> int:
    """Return after how many blocks their kinds repeat, 0 where they do not, or where it is not clear which they are."""
    blocks = find_blocks(model)
    if not layers or len(blocks) % layers:
        return 0
    rows = [[_settings(block) for block in blocks[i : i + layers]] for i in range(0, len(blocks), layers)]
    for row in rows:
        _drop_counters(row)
    periods = range(1, layers // 2)
    return next((p for p in periods if all(row[i] == row[i - p] for row in rows for i in range(p, layers))), 0)


def _settings(block: nn.Module) -> dict[str, object]:
    """Return the classes of a block's modules, the shapes of its parameters, and all plain values among attributes."""
    said: dict[str, object] = {}
    for name, module in block.named_modules():
        said[name] = type(module)
        for key, value in vars(module).items():
            if isinstance(value, bool | int | float | str | tuple | None) and not key.startswith("_"):
                said[f"{name}.{key}"] = value
    return said | {name: (p.shape, p.dtype, p.requires_grad) for name, p in block.named_parameters()}


def _drop_counters(row: list[dict[str, object]]) -> None:
    """Leave out the attributes that number the blocks."""
    for key in [key for key, value in row[0].items() if type(value) is int]:
        if all(said.get(key) == row[0][key] + i for i, said in enumerate(row)):
            for said in row:
                del said[key]


# -- the events


class _Events:
    """When memory is taken and freed, in order.

    Attributes:
        blocks: whose memory, of each event.
        kinds: what happens, without saying which block of the model it happens in.
        taken: where the memory was taken, of each event.
        counts: the number of the block of the model.
    """

    def __init__(self, blocks: Sequence[Block]) -> None:
        moments = [(block.start, 0, block) for block in blocks]
        moments += [(block.end, 1, block) for block in blocks if block.end is not None]
        order: dict[int, int] = {}  # id of a block -> how many were taken before it
        events = []
        for _, ends, block in sorted(moments, key=lambda moment: moment[:2]):
            order.setdefault(id(block), len(order))
            events.append((len(order), ends, order[id(block)], block))
        events.sort(key=lambda event: event[:3])  # what is freed at once (a cache, a list) is freed in any order
        self.blocks = [block for *_, block in events]
        self.kinds = [(ends, *_kind(block)) for _, ends, _, block in events]
        at: dict[int, int] = {}
        self.taken = [at.setdefault(id(block), i) for i, block in enumerate(self.blocks)]
        self.counts = [int(found[0]) if (found := _COUNT.search(block.op.module)) else 0 for block in self.blocks]

    def __len__(self) -> int:
        return len(self.blocks)


def _kind(block: Block) -> tuple:
    op = block.op
    return block.nbytes, block.tenant, op.phase, op.name, _COUNT.sub("#", op.module, count=1), block.recomputed


@dataclass(frozen=True)
class _Insertion:
    """Events at `j` of the deeper copy that the other one, at `i`, does not have; there are `length` of them."""

    i: int
    j: int
    length: int


class _Growth:
    """How a sequence of events grows, from two that differ by one step.

    Args:
        few, more: their events.
        further: how many steps the wanted sequence is beyond `few`.
    """

    def __init__(self, few: _Events, more: _Events, further: int) -> None:
        self._few, self._more, self._further = few, more, further

    def blocks(self) -> list[Block] | None:
        """Return the blocks of the wanted sequence; None where the two do not show how it grows."""
        insertions = self._insertions()
        if insertions is None:
            return None
        result: list[Block | None] = []
        for source, taken, count in self._events(insertions):
            at = len(result)
            if taken == at:
                op = source.op
                if (found := _COUNT.search(op.module)) and int(found[0]) != count:
                    op = op._replace(module=f"{op.module[: found.start()]}{count}{op.module[found.end() :]}")
                result.append(replace(source, start=at, end=None, op=op))
                continue
            block = result[taken] if 0 <= taken < at else None
            if block is None or block.end is not None or _kind(block) != _kind(source):
                return None  # it would free what is not there
            block.end = at
            result.append(None)
        return [block for block in result if block]

    def _insertions(self) -> list[_Insertion] | None:
        """Return what `more` inserts: each time a repetition of what comes just before, in both."""
        a, b = self._few.kinds, self._more.kinds
        found, i, j = [], 0, 0
        while j < len(b):
            if i < len(a) and a[i] == b[j]:
                i, j = i + 1, j + 1
                continue
            length = next((n for n in range(1, min(i, len(b) - j) + 1) if self._repeats(i, j, n)), 0)
            if not length:
                return None
            found.append(_Insertion(i, j, length))
            j += length
        return found if i == len(a) else None

    def _repeats(self, i: int, j: int, length: int) -> bool:
        a, b = self._few.kinds, self._more.kinds
        ahead = b[j + length] if j + length < len(b) else None
        if (a[i] if i < len(a) else None) != ahead:
            return False
        new, on = b[j : j + length], min(length, AGAIN)
        return new == b[j - length : j] == a[i - length : i] and a[i : i + on] == b[j + length : j + length + on]

    def _best(self, each: _Insertion) -> _Insertion:
        """Return an insertion where its turns are most alike: it may begin anywhere in the turn before."""
        counts, a, b, length = self._more.counts, self._few.kinds, self._more.kinds, each.length
        found = []
        for back in range(length + 1):
            i, j = each.i - back, each.j - back
            turns_there = i >= length and b[j : j + length] == b[j - length : j] == a[i - length : i]
            if back == 0 or (turns_there and (back == length or counts[j] != counts[j - 1])):
                found.append(_Insertion(i, j, length))
        return min(found, key=self._unlike)

    def _unlike(self, each: _Insertion) -> int:
        """Return by how many places the turns of an insertion miss what no first or last block disturbs."""
        moves = [self._moves(each, k) for k in range(each.j, each.j + each.length)]
        return sum(
            abs(_nearest(turn, self._turns) - turn) + abs(_nearest(step, self._steps) - step) for turn, step in moves
        )

    def _moves(self, each: _Insertion, k: int, what: str = "taken") -> tuple[int, int]:
        """Return by how much event `k` of `more` moves from turn to turn, and from one depth to the next."""
        old, new = getattr(self._few, what), getattr(self._more, what)
        before = k - each.length
        return new[k] - new[before], new[before] - old[each.i + before - each.j]

    def _events(self, insertions: list[_Insertion]) -> Iterator[tuple[Block, int, int]]:
        """Yield the block of each event of the wanted sequence, where it was taken, and its number in the model."""
        few, more, further = self._few, self._more, self._further
        lengths = [each.length for each in insertions]
        self._turns = sorted({0, *lengths, *(-length for length in lengths)})
        self._steps = list(itertools.accumulate(lengths, initial=0))
        i = j = 0
        for each in [*map(self._best, insertions), _Insertion(len(few), len(more), 0)]:
            for k in range(each.i - i):
                taken = _line(few.taken[i + k], more.taken[j + k], further)
                yield few.blocks[i + k], taken, _line(few.counts[i + k], more.counts[j + k], further)
            i, j = each.i, each.j + each.length
            moved = []
            for k in range(each.j, j):
                turn, step = self._moves(each, k)
                moved.append(
                    (_nearest(turn, self._turns), _nearest(step, self._steps), *self._moves(each, k, "counts"))
                )
            for n in range(further):
                for k, (turn, step, turn_count, step_count) in enumerate(moved, each.j):
                    taken = more.taken[k] + n * turn + (further - 1) * step
                    yield more.blocks[k], taken, more.counts[k] + n * turn_count + (further - 1) * step_count


def _nearest(value: int, allowed: Sequence[int]) -> int:
    """Return what of `allowed` is nearest: a first or a last block may do a few things more or less than others."""
    return min(allowed, key=lambda each: abs(each - value))


# -- the work


def _works(few: Sequence[RepeatedWork], more: Sequence[RepeatedWork], further: int) -> list[RepeatedWork] | None:
    """Return the work of the wanted step; None where the two steps do not do the same things in the same order."""
    if [_same(each) for each in few] != [_same(each) for each in more]:
        return None
    result = []
    for a, b in zip(few, more, strict=True):
        grown = {name: _line(getattr(a.work, name), getattr(b.work, name), further) for name in ("flops", "bytes")}
        shape = tuple(_line(x, y, further) for x, y in zip(a.work.shape, b.work.shape, strict=True))
        result.append(replace(a, work=replace(a.work, shape=shape, **grown), times=_line(a.times, b.times, further)))
    return result


def _same(each: RepeatedWork) -> tuple:
    """Return what is the same at any depth."""
    work = each.work
    return work.name, work.kind, work.dtype, work.layout, len(work.shape), each.phase, each.recomputed
