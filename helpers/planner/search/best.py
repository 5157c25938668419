"""The search itself: best first, and nothing is planned that cannot be among the best any more.

Every layout has a bound (`bounds.py`). Those whose bytes do not fit are out at once. The others wait in order of what
the objective makes of their bounds. Whose turn it is gets a closer bound, from a probe of its blocks, and waits again;
when its turn comes a second time, it is planned. When the next bound is worse than the last of the best ten, all that
still wait are worse, too.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from ..catalog.clusters import Cluster
from ..config import RecipeError
from ..layout.layout import Layout
from ..layout.layout_plan import plan_layout
from ..layout.long_stage import run_key
from .bounds import Bounds, Probe
from .found import Found, found_of
from .probe import probe_of, run_probe
from .question import Question
from .space import layouts
from .workers import Workers

BEST = 10
Tell = Callable[[str, float, float], None]
"""Hears what is going on, how much of it is done, and of how much."""
Hear = Callable[[Found], None]
"""Hears of each layout that was planned and fits."""
_SOME = 2000  # layouts between two words about the progress


@dataclass
class Search:
    """A search and what it has found.

    Attributes:
        question: what is searched for.
        space: all layouts.
        nbytes: of each, what it holds at least.
        seconds: by number in `space`, how long it takes at least; of those whose bytes may fit.
        planned: by number in `space`.
        refused: layouts that could not be simulated, with the reason.
        hear: hears of each layout that was planned and fits.
    """

    question: Question
    space: list[Layout]
    nbytes: list[float] = field(default_factory=list)
    seconds: dict[int, float] = field(default_factory=dict)
    planned: dict[int, Found] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    hear: Hear = lambda found: None

    def __post_init__(self) -> None:
        self.bounds = Bounds(self.question.cluster)
        self.room = self.question.cluster.gpu.room
        self._probes: dict[Layout, Probe | None] = {}
        self._closer: set[int] = set()

    def best(self, count: int = 0) -> list[Found]:
        """Return the best layouts that fit, in order."""
        fitting = [(self.value_of(found), number) for number, found in self.planned.items() if found.fits]
        return [self.planned[number] for _, number in sorted(fitting)[: count or BEST]]

    @property
    def threshold(self) -> float:
        """What a layout must reach to be among the best."""
        best = self.best()
        return self.value_of(best[-1]) if len(best) == BEST else float("inf")

    def value_of(self, found: Found) -> float:
        """Return what the objective makes of a layout."""
        return self.question.value(found.seconds, found.nbytes, found.layout.ranks)

    def bound_value(self, number: int) -> float:
        """Return what the objective makes of a layout's bound."""
        return self.question.value(self.seconds[number], self.nbytes[number], self.space[number].ranks)

    def bound(self, tell: Tell) -> list[int]:
        """Bound all layouts; return those that may fit."""
        for number, layout in enumerate(self.space):
            if number % _SOME == 0:
                tell("ruling out by bounds", number, len(self.space))
            self.nbytes.append(self.bounds.nbytes(layout))
            if self.nbytes[-1] <= self.room:
                self.seconds[number] = self.bounds.seconds(layout)
        return list(self.seconds)

    def probe(self, number: int) -> Layout | None:
        """Return the probe by which a layout's bound can still come closer; None if there is none."""
        plain = None if number in self._closer else probe_of(self.space[number])
        return None if plain in self._probes and self._probes[plain] is None else plain

    def knows(self, plain: Layout) -> bool:
        """Return whether a probe was run."""
        return plain in self._probes

    def come_closer(self, number: int, plain: Layout) -> bool:
        """Bound a layout by a probe that was run; return whether it may still fit."""
        layout, probe = self.space[number], self._probes[plain]
        self._closer.add(number)
        self.nbytes[number] = max(self.nbytes[number], self.bounds.nbytes(layout, probe))
        self.seconds[number] = max(self.seconds[number], self.bounds.seconds(layout, probe))
        return self.nbytes[number] <= self.room

    def submit(self, number: int, workers: Workers) -> None:
        """Have a layout planned."""
        layout = self.space[number]
        workers.submit(run_key(layout), plan_one, layout, self.question.cluster, tag=number)

    def enter(self, tag: "int | Layout", answer: "Found | str | Probe | None") -> None:
        """Write down what came of a layout, by its number, or of a probe; None: its blocks cannot be run."""
        if isinstance(tag, Layout):
            self._probes[tag] = answer
        elif isinstance(answer, Found):
            self.planned[tag] = answer
            if answer.fits:
                self.hear(answer)
        else:
            self.refused[tag] = answer


def search(
    question: Question,
    workers: Workers | None = None,
    tell: Tell = lambda what, done, of: None,
    hear: Hear = lambda found: None,
) -> Search:
    """Search for the best layouts.

    Args:
        question: what is searched for.
        workers: that plan; by default this process.
        tell: hears of the progress.
        hear: hears of each layout that was planned and fits.

    Raises:
        RecipeError: no layout divides the GPUs and the tokens.
    """
    state = Search(question, [], hear=hear)
    for layout in layouts(question):
        if len(state.space) % _SOME == 0:
            tell("listing layouts", len(state.space), 0)
        state.space.append(layout)
    if not state.space:
        raise RecipeError(
            f"No layout divides {question.sequences:,} sequences over {question.gpus:,} GPUs: "
            "change gpus, tokens-per-batch or seq."
        )
    waiting = [(state.bound_value(number), number) for number in state.bound(tell)]
    race(state, waiting, workers or Workers(0), tell)
    return state


def race(state: Search, waiting: list[tuple[float, int]], workers: Workers, tell: Tell) -> None:
    """Plan layouts in the order of their bounds until none that waits can be among the best."""
    heapq.heapify(waiting)
    parked: dict[Layout, list[int]] = defaultdict(list)  # by the probe for which they wait
    first = waiting[0][0] if waiting else 0.0
    while waiting or workers.busy:
        while waiting and workers.free:
            value, number = heapq.heappop(waiting)
            if value > state.threshold:
                waiting.clear()
                break
            if number in state.planned or number in state.refused:
                continue
            plain = state.probe(number)
            if plain is None:
                state.submit(number, workers)
            elif state.knows(plain):
                if state.come_closer(number, plain):
                    heapq.heappush(waiting, (state.bound_value(number), number))
            else:
                if plain not in parked:  # a probe serves many layouts
                    workers.submit(None, probe_one, plain, tag=plain)
                parked[plain].append(number)
        for tag, answer in workers.done():
            state.enter(tag, answer)
            for number in parked.pop(tag, ()):
                heapq.heappush(waiting, (state.bound_value(number), number))
        _tell_race(state, tell, (first, waiting[0][0] if waiting else state.threshold))


def _tell_race(state: Search, tell: Tell, values: tuple[float, float]) -> None:
    """Tell how many of the best there are, then how far the bounds have come towards the last of them."""
    first, now = values
    whole = state.threshold - first
    done = len(state.best()) / BEST / 2
    if 0 < whole < float("inf"):
        done += (now - first) / whole / 2
    tell(f"{len(state.planned)} planned so far", max(0.0, min(1.0, done)), 1.0)


def plan_one(layout: Layout, cluster: Cluster) -> "Found | str":
    """Plan a layout; return its figures, or why it cannot be simulated."""
    try:
        return found_of(plan_layout(layout, cluster))
    except (RecipeError, RuntimeError, ValueError) as error:  # of a library that cannot do what the layout wants
        return str(error)


def probe_one(plain: Layout) -> Probe | None:
    """Run a probe; None if its blocks cannot be run."""
    try:
        return run_probe(plain)
    except (RecipeError, RuntimeError, ValueError):
        return None
