"""A deep model's step, estimated from two shallow copies of it: for searches, where planning each candidate takes long.

The blocks of a model are alike, so each of them adds the same work to a step and the same bytes to each moment of it.
A step is cut into places: a phase (a micro-batch's forward pass, its backward pass, the update) and in it the first
blocks, the last ones, and what comes before and after them. The peak of a place lies on a straight line over the
number of blocks, and the peak of the step is the highest of these lines.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..meter.count import Block
from .allocator import ROUNDING
from .catalog.models import ModelSpec, spec_of
from .config import TrainingConfig
from .replay import in_order, replay
from .simulate.steps import Simulation, simulate
from .simulate.work_count import RepeatedWork

EVERY = {"none": 1, "every": 1, "every-2": 2, "every-3": 3}  # checkpointing -> blocks after which its pattern repeats
FEWEST = 2  # blocks of the shallower copy
ENDS = 1  # blocks at each end that are places of their own
_Place = tuple[int, str, str]


@dataclass(frozen=True)
class Estimate:
    """What a step will need.

    Attributes:
        allocated, reserved: bytes at the peaks.
        simulation: the step's work and sizes; without blocks where it was estimated.
        exact: whether the whole model was run.
        phase: of the step, in which the most is allocated; "" where the whole model was run.
    """

    allocated: int
    reserved: int
    simulation: Simulation
    exact: bool
    phase: str = ""


def estimate(recipe: TrainingConfig) -> Estimate:
    """Estimate a step of `recipe`, or run it whole where its model has too few blocks or they are not alike.

    Raises:
        RecipeError: the recipe cannot work.
    """
    spec = spec_of(recipe)
    step = EVERY.get(recipe.checkpointing, 0)
    fewer = -(-FEWEST // step) * step if step else 0
    if step and spec.layers >= fewer + 2 * step and (spec.layers - fewer) % step == 0:
        few, more = (_shallow(recipe, spec, layers) for layers in (fewer, fewer + step))
        if set(few.peaks) == set(more.peaks):
            return _at(few, more, (spec.layers - fewer) // step)
    simulation = simulate(recipe)
    played = replay(simulation.blocks, recipe.expandable_segments)
    return Estimate(played.peak_allocated, played.peak_reserved, simulation, True)


@dataclass(frozen=True)
class _Shallow:
    """A copy of a few blocks: its step, the peak of each place, and what the allocator made of it."""

    simulation: Simulation
    peaks: dict[_Place, int]
    allocated: int
    reserved: int


def _shallow(recipe: TrainingConfig, spec: ModelSpec, layers: int) -> _Shallow:
    simulation = simulate(recipe, spec=spec.with_layers(layers))
    played = replay(simulation.blocks, recipe.expandable_segments)
    return _Shallow(simulation, _peaks(simulation.blocks, layers), played.peak_allocated, played.peak_reserved)


def _peaks(blocks: Sequence[Block], layers: int) -> dict[_Place, int]:
    """Return the most bytes that are alive in each place."""
    held, turn, running = 0, 0, ""
    peaks: dict[_Place, int] = {}
    for ends, block in in_order(blocks):
        size = -(-block.nbytes // ROUNDING) * ROUNDING
        if ends:
            held -= size
            continue
        held += size
        phase = block.op.phase.partition(" (")[0]
        if phase != running:
            turn, running = turn + 1, phase
        for where in _where(block.op.module, layers):
            place = turn, phase, where
            peaks[place] = max(peaks.get(place, 0), held)
    return peaks


_BLOCK = re.compile(r"(?:^|\.)(\d+)(?=[. ]|$)")


def _where(module: str, layers: int) -> list[str]:
    """Return where a module stands: in one of the blocks next to an end, or outside of all.

    Between these, peaks lie on a line from one end to the other. A block may be next to both.
    """
    found = _BLOCK.search(module)
    if not found:
        return [module.partition(" ")[0].rpartition(".")[2]]
    block = int(found[1])
    return [f"block {each}" for each in (block, block - layers) if -ENDS <= each < ENDS]


def _at(few: _Shallow, more: _Shallow, further: int) -> Estimate:
    """Return the estimate that lies `further` times as far beyond `few` as `more` does."""

    def line(one: float, other: float) -> int:
        return round(one + further * (other - one))

    places, phase = max((line(peak, more.peaks[place]), place[1]) for place, peak in few.peaks.items())
    # An allocator's block may be a little larger than what was asked for.
    allocated = round(places * more.allocated / max(more.peaks.values()))
    reserved = max(allocated, line(few.reserved, more.reserved))
    numbers = ("flops", "recomputed_flops", "sent", "host_bytes", "parameters", "trained")
    numbers += ("parameter_bytes", "trained_bytes", "state_bytes")
    a, b = few.simulation, more.simulation
    values = {name: line(getattr(a, name), getattr(b, name)) for name in numbers}
    simulation = replace(a, blocks=[], works=_works(a.works, b.works, further), seconds=a.seconds + b.seconds, **values)
    return Estimate(allocated, reserved, simulation, False, phase)


def _works(few: Sequence[RepeatedWork], more: Sequence[RepeatedWork], further: int) -> list[RepeatedWork]:
    """Return the work of the deep step. What only one copy does may come out less than 0 times; the sums are right."""
    times: Counter[RepeatedWork] = Counter()
    for works, factor in ((few, 1 - further), (more, further)):
        for work in works:
            times[replace(work, times=1)] += factor * work.times
    return [replace(work, times=number) for work, number in times.items() if number]
