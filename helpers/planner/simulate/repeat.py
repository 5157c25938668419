"""A deep model's step from the steps of two shallow copies of it: the same record, event for event.

Blocks that are alike ask for the same memory in the same order. So the record of the deeper copy is the record of the
other one with a few stretches in it, each of which repeats what comes right before it: the parameters of one more
block, its forward pass, its backward pass, its update. Repeated once for each block that is missing, these stretches
make the record of the whole model.

For this an event must read the same in each block. A request is known by its size and by what asks for it; a release by
the request, and by how many like it are alive that are older, or younger, whichever varies less.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import groupby, islice
from typing import TYPE_CHECKING, NamedTuple

from ...meter.count import Block
from ..allocator import ROUNDING
from ..catalog.models import ModelSpec
from ..config import TrainingConfig
from ..replay import in_order
from .block_kinds import FEW, compared_depths
from .work_count import RepeatedWork

if TYPE_CHECKING:
    from .steps import Simulation

# Types of models whose blocks are known to be all alike. Those of others are built, and compared.
ALIKE = frozenset(("llama", "mistral", "qwen2", "qwen3", "gpt2", "bert"))


def depths(recipe: TrainingConfig, spec: ModelSpec) -> tuple[int, int] | None:
    """Return the numbers of blocks of the two copies; None where the model has to be run whole."""
    named = (*recipe.freeze, *recipe.train_only, *recipe.modules_to_save, *recipe.lora_targets)
    if recipe.checkpointing not in ("none", "every") or spec.layers <= 2 * FEW + 1:
        return None
    if any(part.isdecimal() for name in named for part in name.split(".")):
        return None
    if recipe.ranks > 1 and recipe.shard != "zero3":
        return None  # buckets end anywhere in a block; what `fully_shard` gathers is a block
    types = getattr(spec.config, "layer_types", None) or ()
    known = getattr(spec.config, "model_type", "") in ALIKE and len(set(types)) < 2
    return (FEW, FEW + 1) if known else compared_depths(recipe, spec)


def deepened(few: "Simulation", more: "Simulation", copies: int) -> "Simulation | None":
    """Return the step of a model deeper than `few` by `copies` times what `more` is; None where there is no pattern."""
    blocks, works = repeated(few.blocks, more.blocks, copies), _works(few.works, more.works, copies)
    if blocks is None or works is None:
        return None
    numbers = ("flops", "recomputed_flops", "parameters", "trained", "parameter_bytes", "trained_bytes", "state_bytes")
    numbers += ("host_bytes", "sent")
    grown = {name: _line(getattr(few, name), getattr(more, name), copies) for name in numbers}
    return replace(few, blocks=blocks, works=works, **grown)


def _line(few: float, more: float, copies: int) -> float:
    return few + copies * (more - few)


def _works(few: Sequence[RepeatedWork], more: Sequence[RepeatedWork], copies: int) -> list[RepeatedWork] | None:
    """Return the work of the deep step: works come more often, or, of an operation for all parameters, are larger."""
    once, twice = ({replace(work, times=1): work.times for work in works} for works in (few, more))
    larger = [work for work in twice if work not in once]
    grown = []
    for work, times in once.items():
        if work in twice:
            grown.append(replace(work, times=_line(times, twice[work], copies)))
            continue
        other = next((each for each in larger if _sizeless(each) == _sizeless(work) and twice[each] == times), None)
        if other is None:
            return None
        larger.remove(other)
        flops, nbytes = (_line(getattr(work.work, n), getattr(other.work, n), copies) for n in ("flops", "bytes"))
        grown.append(replace(work, work=replace(work.work, flops=flops, bytes=nbytes), times=times))
    return None if larger else grown


def _sizeless(work: RepeatedWork) -> RepeatedWork:
    return replace(work, work=replace(work.work, flops=0, bytes=0))


# -- the record


class _Event(NamedTuple):
    """A request or a release.

    Attributes:
        kind: of the request, numbered.
        place: of a release, among the live blocks of its kind: from the oldest, or if negative from the youngest.
        block: that begins or ends.
    """

    kind: int
    place: int | None
    block: Block


class _Stretch(NamedTuple):
    """A repetition in the longer record: where it begins, in the shorter one and in this, and its events' number."""

    at: int
    begin: int
    length: int


def repeated(few: Sequence[Block], more: Sequence[Block], copies: int) -> list[Block] | None:
    """Return the record in which what `more` has beyond `few` comes so many times; None where it is no repetition."""
    short, long = _read(few, more)
    names: dict[tuple[int, int | None], int] = {}
    stretches = _stretches(*([names.setdefault(event[:2], len(names)) for event in each] for each in (short, long)))
    if stretches is None:
        return None
    blocks: list[Block] = []
    alive: dict[int, list[Block]] = defaultdict(list)
    for tick, (event, numbers) in enumerate(_grown(short, long, stretches, copies)):
        like = alive[event.kind]
        if event.place is not None:
            if not -len(like) <= event.place < len(like):
                return None  # a release without its request
            like.pop(event.place).end = tick
            continue
        op = event.block.op
        if numbers:
            op = op._replace(module=_named(_parts(op.module)[0], numbers))
        blocks.append(replace(event.block, start=tick, end=None, op=op))
        like.append(blocks[-1])
    return blocks


def _read(*records: Sequence[Block]) -> list[list[_Event]]:
    """Return the events of both records; what is alike in them reads alike."""
    kinds: dict[tuple, int] = {}
    older: Counter[int] = Counter()  # kind -> the most of it that were alive beside an older one that was released
    younger: Counter[int] = Counter()
    read = []
    for blocks in records:
        alive: dict[int, list[int]] = defaultdict(list)
        events = []
        for ends, block in _settled(blocks):
            op = block.op
            # In the allocator's rounding: PyTorch's cache of fake results may cut the padding off the end of one.
            size = -(-block.nbytes // ROUNDING)
            described = size, block.category, op.phase, op.name, _parts(op.module)[0], block.recomputed
            kind = kinds.setdefault(described, len(kinds))
            if not ends:
                alive[kind].append(id(block))
                events.append((kind, None, block))
                continue
            place = alive[kind].index(id(block))
            del alive[kind][place]
            back = len(alive[kind]) - place
            older[kind], younger[kind] = max(older[kind], place), max(younger[kind], back)
            events.append((kind, (place, -1 - back), block))
        read.append(events)
    return [
        [_Event(kind, place and place[younger[kind] <= older[kind]], block) for kind, place, block in events]
        for events in read
    ]


def _settled(blocks: Sequence[Block]) -> Iterator[tuple[bool, Block]]:
    """Yield what `in_order` returns, with releases that follow each other in the order of their requests.

    To an allocator their order is all the same, and autocast's cache releases what it holds in no order that lasts.
    """
    for _, moments in groupby(in_order(blocks), key=lambda moment: moment[0]):
        yield from sorted(moments, key=lambda moment: moment[1].start)


def _stretches(short: list[int], long: list[int]) -> list[_Stretch] | None:
    """Return where `long` repeats what comes before, so that without it it is `short`."""
    i = j = 0
    found, left = [], len(long) - len(short)
    while True:
        same = _common(short, i, long, j)
        i, j = i + same, j + same
        if not left:
            return found if i == len(short) else None
        lengths = [r for r in range(1, min(left, j) + 1) if long[j - 1] == long[j + r - 1]]
        lengths = [r for r in lengths if long[j - r : j] == long[j : j + r]]
        if not lengths:
            return None
        length = max(lengths, key=lambda r: (_common(short, i, long, j + r), r))
        found.append(_Stretch(i, j, length))
        j, left = j + length, left - length


def _common(short: list[int], i: int, long: list[int], j: int) -> int:
    """Return for how many events the two agree from there on."""
    pairs = enumerate(zip(islice(short, i, None), islice(long, j, None), strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(short) - i, len(long) - j))


def _grown(
    short: list[_Event], long: list[_Event], stretches: list[_Stretch], copies: int
) -> Iterator[tuple[_Event, tuple[int, ...]]]:
    """Yield the events of the deep record, with the numbers in the names of the modules that request."""
    numbers: list[tuple[int, ...]] = []  # of each event of `long`, in the deep record
    i = 0
    for at, begin, length in [*stretches, _Stretch(len(short), len(long), 0)]:
        for one, other in zip(short[i:at], long[len(numbers) : begin], strict=True):
            pairs = zip(_numbers(one), _numbers(other), strict=True)
            numbers.append(tuple(_line(a, b, copies) for a, b in pairs))
            yield other, numbers[-1]
        before, again = long[begin - length : begin], long[begin : begin + length]
        last = numbers[len(numbers) - length :]
        for _ in range(copies):
            last = [_next(*step) for step in zip(last, before, again, strict=True)]
            yield from zip(again, last, strict=True)
        numbers += last
        i = at


def _next(last: tuple[int, ...], before: _Event, again: _Event) -> tuple[int, ...]:
    """Return the numbers that come after `last`, as those of `again` come after those of `before`."""
    return tuple(n + b - a for n, a, b in zip(last, _numbers(before), _numbers(again), strict=True))


_NUMBER = re.compile(r"(\d+)")


@cache
def _parts(module: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return what stands around the numbers in the name of a module, and the numbers."""
    parts = _NUMBER.split(module)
    return tuple(parts[::2]), tuple(map(int, parts[1::2]))


@cache
def _named(around: tuple[str, ...], numbers: tuple[int, ...]) -> str:
    return around[0] + "".join(f"{number}{part}" for number, part in zip(numbers, around[1:], strict=True))


def _numbers(event: _Event) -> tuple[int, ...]:
    return _parts(event.block.op.module)[1] if event.place is None else ()
