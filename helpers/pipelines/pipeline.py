"""What a pipeline is to do: a list of actions for each rank, which rank keeps which stage, and what actions cost."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .action import in_flight
from .costs import Costs
from .placement import Placement, in_a_row
from .simulate import simulate
from .timeline import Timeline


@dataclass(frozen=True)
class Pipeline:
    """Lists of actions, with all that it takes to run them.

    Attributes:
        schedules: for each rank, its actions.
        placement: which rank keeps which stage.
        costs: in ticks.
        micro_batches: how many there are.
    """

    schedules: Sequence[Sequence[Any]]
    placement: Placement
    micro_batches: int
    costs: Costs = field(default_factory=Costs)

    @classmethod
    def of(cls, make: Callable[..., Iterable[Any]], ranks: int, micro_batches: int, chunks: int = 1) -> "Pipeline":
        """Call `make(rank, ranks, micro_batches)` for each rank; with `chunks` as well, if there are several.

        The more chunks, the thinner each: all pipelines have the same work to do.
        """
        more = (chunks,) if chunks > 1 else ()
        schedules = [list(make(rank, ranks, micro_batches, *more)) for rank in range(ranks)]
        return cls(schedules, in_a_row(ranks, chunks), micro_batches, Costs.thin(chunks))

    def simulated(self) -> Timeline:
        """Return its timeline in ticks: the ideal, with messages that take no time."""
        return simulate(self.schedules, self.placement, self.costs)

    @property
    def in_flight(self) -> list[int]:
        """How many micro-batches each rank holds at most, each chunk's counted."""
        return [in_flight(schedule) for schedule in self.schedules]
