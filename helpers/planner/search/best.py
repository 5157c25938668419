"""The search itself: best first, and nothing is planned that cannot be among the best any more.

Every layout has a bound (`bounds.py`). Those whose bytes do not fit are out at once. The others wait in order of what
the objective makes of their bounds; layouts whose stages run alike stand together, for a run is most of a plan's time.
When the next bound is worse than the last of the best ten, all that still wait are worse, too.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field

from ..catalog.clusters import Cluster
from ..layout.layout import Layout
from ..layout.layout_plan import plan_layout
from ..layout.long_stage import run_key
from ..recipe import RecipeError
from .bounds import Bound, Bounds
from .found import Found, found_of
from .question import Question
from .space import layouts

BEST = 10
TOGETHER = 8  # layouts that a process plans before it asks for the threshold again
_Waiting = list[tuple[float, int]]  # (value of the bound, number of the layout)


@dataclass
class Search:
    """A search and what it has found.

    Attributes:
        question: what is searched for.
        space: all layouts, with their bounds.
        planned: by number in `space`.
        refused: layouts that could not be simulated, with the reason.
    """

    question: Question
    space: list[tuple[Layout, Bound]]
    planned: dict[int, Found] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)

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
        layout, bound = self.space[number]
        return self.question.value(bound.seconds, bound.nbytes, layout.ranks)

    def plan(self, numbers: Iterable[int]) -> None:
        """Plan some layouts here."""
        for number in numbers:
            if number not in self.planned and number not in self.refused:
                self.enter(plan_some([(number, self.space[number][0])], self.question.cluster))

    def enter(self, answers: "list[tuple[int, Found | str]]") -> None:
        """Write down what came of some layouts."""
        for number, answer in answers:
            if isinstance(answer, Found):
                self.planned[number] = answer
            else:
                self.refused[number] = answer


def search(question: Question, processes: int = 0, tell: Callable[[int, int], None] = lambda done, of: None) -> Search:
    """Search for the best layouts.

    Args:
        question: what is searched for.
        processes: that plan; 0: this one.
        tell: called with how many layouts are decided, and how many there are.

    Raises:
        RecipeError: no layout divides the GPUs and the tokens.
    """
    bounds = Bounds(question.cluster)
    state = Search(question, [(layout, bounds.of(layout)) for layout in layouts(question)])
    if not state.space:
        raise RecipeError(
            f"No layout divides {question.sequences:,} sequences over {question.gpus:,} GPUs: "
            "change gpus, tokens-per-batch or seq."
        )
    room = question.cluster.gpu.room
    fitting = sorted(
        (state.bound_value(number), number) for number, (_, bound) in enumerate(state.space) if bound.nbytes <= room
    )
    if processes:
        _with_processes(state, fitting, processes, tell)
    else:
        for value, number in fitting:
            if value > state.threshold:
                break
            state.plan([number])
            tell(len(state.planned), len(state.space))
    tell(len(state.space), len(state.space))
    return state


def plan_some(batch: list[tuple[int, Layout]], cluster: Cluster) -> "list[tuple[int, Found | str]]":
    """Plan layouts; returns for each its figures, or why it cannot be simulated."""
    answers: list[tuple[int, Found | str]] = []
    for number, layout in batch:
        try:
            answers.append((number, found_of(plan_layout(layout, cluster))))
        except (RecipeError, RuntimeError, ValueError) as error:  # of a library that cannot do what the layout wants
            answers.append((number, str(error)))
    return answers


def _with_processes(state: Search, fitting: _Waiting, processes: int, tell: Callable[[int, int], None]) -> None:
    from joblib.externals.loky import get_reusable_executor

    executor = get_reusable_executor(max_workers=processes)
    waiting = _groups(state, fitting)
    running: set[Future] = set()
    try:
        while True:
            threshold = state.threshold
            while len(running) < processes and (batch := _next(waiting, threshold)):
                jobs = [(number, state.space[number][0]) for number in batch]
                running.add(executor.submit(plan_some, jobs, state.question.cluster))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                state.enter(future.result())
            left = sum(value <= state.threshold for group in waiting for value, _ in group)
            tell(len(state.space) - left, len(state.space))
    finally:
        for future in running:
            future.cancel()


def _groups(state: Search, fitting: _Waiting) -> list[_Waiting]:
    """Return the layouts in groups that share their runs, best first within each."""
    groups: dict[Layout, _Waiting] = defaultdict(list)
    for value, number in fitting:
        groups[run_key(state.space[number][0])].append((value, number))
    return list(groups.values())


def _next(waiting: list[_Waiting], threshold: float) -> list[int]:
    """Take the most promising layouts of the group with the best bound; none if no bound is below the threshold."""
    waiting[:] = [group for group in waiting if group and group[0][0] <= threshold]
    if not waiting:
        return []
    group = min(waiting, key=lambda group: group[0])
    return list(_taken(group, threshold))


def _taken(group: _Waiting, threshold: float) -> Iterator[int]:
    for _ in range(TOGETHER):
        if not group or group[0][0] > threshold:
            return
        yield group.pop(0)[1]
