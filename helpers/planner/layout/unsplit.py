"""Bytes that the caching allocator counts as allocated beyond what was requested: blocks that it did not split.

A request above 1 MiB that finds a free block with up to 1 MiB more than it wants gets the whole block (`should_split`
in `c10/cuda/CUDACachingAllocator.cpp`), and `torch.cuda.max_memory_allocated` counts it whole. So 3 MiB may count as
4. Among tensors of some MiB this is a percent or two of the peak; where all large ones are multiples of 2 MiB, it is
nothing. Here the actions of a pipeline rank are played through a model of the allocator, two steps of them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ...core.units import MiB
from ...pipelines.play import Pass
from ..allocator import ROUNDING, SMALL, CachingAllocator
from ..allocator import Block as Memory
from . import stage_run as runs
from .layout import Layout
from .rank_memory import RankMemory, action_key
from .stage_run import StageRun
from .trace import Life, Moment

UNSPLIT = "blocks not split"
_STEPS = 2  # the second finds the blocks that the first has left
_MOST_ACTIONS = 64  # of a step, that are played
_MOST_PLAYED = 60_000  # lives in a step: more are those of a large model, where a MiB is nothing
_LEAST = 0.001  # of the peak: less than this is not looked for


def add_unsplit(
    ranks: Iterable[RankMemory], layout: Layout, orders: Iterable[Sequence[Pass]], stages: Sequence[StageRun]
) -> None:
    """Add what the allocator does not split to the fullest moments of pipeline ranks with these actions and stages."""
    whole: dict[int, list[Life]] = {}  # by the run's id: many stages are one run
    for rank, (order, own) in enumerate(zip(orders, ranks, strict=True)):
        mine = {number: stages[number] for number in range(rank, len(stages), layout.pipeline)}
        kept = sum(map(_odd, mine.values())) / len(mine) * max(1, own.in_flight)
        if kept * MiB < _LEAST * own.nbytes:
            continue
        for stage in mine.values():
            if id(stage) not in whole:
                whole[id(stage)] = list(whole_lives(stage))
        lives = {number: whole[id(stage)] for number, stage in mine.items()}
        order = order[:_MOST_ACTIONS]
        if len(order) * sum(map(len, lives.values())) < _MOST_PLAYED * 2 * len(mine):
            own.peak[UNSPLIT] += unsplit_bytes(layout, order, lives)


def _odd(stage: StageRun) -> float:
    """Return how many large tensors of a micro-batch wait for its backward pass; 0 where all are multiples of 2 MiB."""
    large = [life for life in stage.lives if life.nbytes > SMALL and life.born]
    if all(life.nbytes % (2 * MiB) == 0 for life in large):
        return 0.0
    kept = sum(life.born.action == (runs.FORWARD, runs.LAST) != (life.died and life.died.action) for life in large)
    return kept * (1 + stage.repeats / max(1, stage.blocks))


def whole_lives(stage: StageRun) -> Iterator[Life]:
    """Yield the lives of a stage, those of the block that comes more often as often."""
    repeats = stage.repeats
    for life in stage.lives:
        born, died = (moment and _layer(moment, stage.blocks) for moment in (life.born, life.died))
        own = born == stage.repeated
        for copy in range(repeats + 1 if own else 1):
            if died is None:
                until = None
            elif own:  # in the same block, or so many blocks later or earlier
                until = born + copy + died - born
                until = min(max(until, stage.repeated), stage.repeated + repeats) if died == born else until
            elif died == stage.repeated:
                until = died + (repeats if born is not None and born > died else 0)
            else:
                until = died + (repeats if died > stage.repeated else 0)
            since = None if born is None else born + (copy if own else repeats if born > stage.repeated else 0)
            yield Life(life.nbytes, _moved(life.born, since, stage), _moved(life.died, until, stage))


def _layer(moment: Moment, blocks: int) -> int | None:
    """Return in which block a moment is; None before and after all of them."""
    action, place, _ = moment
    if action[0] == runs.FORWARD and 1 <= place <= blocks:
        return place - 1
    return blocks - place if action[0] == runs.BACKWARD and 1 <= place <= blocks else None


def _moved(moment: Moment | None, layer: int | None, stage: StageRun) -> Moment | None:
    """Return a moment in a block by its number in the whole stage."""
    if moment is None:
        return None
    blocks = stage.blocks + stage.repeats
    if layer is None:  # before all blocks, or after them
        return moment if moment.place <= 0 else moment._replace(place=moment.place + stage.repeats)
    return moment._replace(place=layer + 1 if moment.action[0] == runs.FORWARD else blocks - layer)


def unsplit_bytes(layout: Layout, order: Sequence[Pass], lives: Mapping[int, Sequence[Life]]) -> int:
    """Return by how much the allocator's peak is above that of what was asked for."""
    player = _Player(layout, lives)
    for _ in range(_STEPS):
        player.step(order)
    return player.allocated - player.wanted


class _Player:
    """Plays steps of a rank through the allocator.

    Args:
        layout: of the step.
        lives: of its stages' tensors.

    Attributes:
        allocated, wanted: bytes in blocks and bytes asked for, each at its fullest moment.
    """

    def __init__(self, layout: Layout, lives: Mapping[int, Sequence[Life]]) -> None:
        self._layout, self._lives = layout, lives
        self._memory = CachingAllocator()
        self._small = self._wanted = 0  # bytes held: of small tensors, whose blocks are always split, and of large ones
        self.allocated = self.wanted = 0  # at their fullest moments
        self._held: dict[tuple[int, int, int], tuple[Memory | None, int]] = {}
        self._events: dict[tuple[int, runs.ActionKey], list[tuple[tuple[int, int], bool, int]]] = {}
        for stage, mine in lives.items():
            for number, life in enumerate(mine):
                if life.born is None:
                    self._begin((stage, number, 0), life.nbytes)
                    continue
                self._enter(stage, life.born, number, False)
                if life.died is not None:
                    self._enter(stage, life.died, number, True)
        for events in self._events.values():
            events.sort()
        self._standing = set(self._held)

    def _enter(self, stage: int, moment: Moment, number: int, ends: bool) -> None:
        events = self._events.setdefault((stage, moment.action), [])
        events.append(((moment.place, moment.after), ends, number))

    def step(self, order: Iterable[Pass]) -> None:
        """Play one step."""
        for action in order:
            self._play(action.stage, action_key(self._layout, action), action.micro_batch)
        for stage in self._lives:
            self._play(stage, (runs.UPDATE, ""), 0)
        for key in [key for key in self._held if key not in self._standing]:
            self._finish(key)

    def _play(self, stage: int, action: runs.ActionKey, micro_batch: int) -> None:
        for _, ends, number in self._events.get((stage, action), ()):
            key = stage, number, micro_batch
            if not ends and key not in self._held:
                self._begin(key, self._lives[stage][number].nbytes)
            elif ends:
                if key not in self._held:  # what the pass before has left
                    key = next((other for other in self._held if other[:2] == key[:2]), key)
                if key in self._held:
                    self._finish(key)

    def _begin(self, key: tuple[int, int, int], nbytes: int) -> None:
        size = -(-nbytes // ROUNDING) * ROUNDING
        if size <= SMALL:
            self._held[key] = None, size
            self._small += size
        else:
            self._held[key] = self._memory.allocate(size), size
            self._wanted += size
        self.allocated = max(self.allocated, self._memory.allocated + self._small)
        self.wanted = max(self.wanted, self._wanted + self._small)

    def _finish(self, key: tuple[int, int, int]) -> None:
        memory, size = self._held.pop(key)
        if memory is None:
            self._small -= size
        else:
            self._memory.release(memory)
            self._wanted -= size
