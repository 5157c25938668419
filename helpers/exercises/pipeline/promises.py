"""What a schedule must satisfy: each function describes how a pipeline's lists violate one requirement, or None."""

from collections import Counter

from ...pipelines.action import KINDS, Action, in_flight
from ...pipelines.costs import Costs
from ...pipelines.placement import in_a_row
from ...pipelines.simulate import Stuck, simulate
from ...pipelines.timeline import Timeline
from .lists import Case, Lists
from .waits import longest_avoidable_wait

NAMES = {"F": "forward pass", "B": "backward pass", "I": "input gradient", "W": "weight gradients"}


def not_each_once(case: Case, lists: Lists, kinds: str) -> str | None:
    """Each rank runs each kind of action once for each micro-batch and chunk, and nothing else."""
    wanted = Counter(Action(kind, i, chunk) for kind in kinds for i in range(case.m) for chunk in range(case.chunks))
    for rank, actions in enumerate(lists):
        counts = Counter(actions)
        for action in [*wanted, *counts]:
            if counts[action] == wanted[action]:
                continue
            if action.kind not in tuple(KINDS):
                return f'rank {rank}\'s list has an entry that is not an action. An action looks like this: ("F", 0).'
            if action.kind not in kinds:
                return f"rank {rank} runs {action}; the actions of this schedule are {', '.join(kinds)}."
            if not wanted[action]:
                there = f"micro-batches 0 to {case.m - 1}" + f", chunks 0 to {case.chunks - 1}" * (case.v > 0)
                return f"rank {rank} runs {action}; there are {there}."
            name = f"{action} ({NAMES[action.kind]} of micro-batch {action.micro_batch})"
            return (
                f"rank {rank} runs {name} {counts[action]} times; it should be once."
                if counts[action]
                else f"rank {rank} never runs {name}."
            )
    return None


def stuck(case: Case, lists: Lists) -> str | None:
    """No rank waits for a message that never comes."""
    ran = _simulated(case, lists, Costs())
    return ran if isinstance(ran, str) else None


def too_slow(case: Case, lists: Lists, ideal: float, best: Lists) -> str | None:
    """The step takes no more than `ideal` ticks, where an F, an I and a W take one each; the lists `best` do so."""
    ran = _simulated(case, lists, Costs())
    if isinstance(ran, str):
        return ran
    if not ran.duration <= ideal + 1e-6:
        idle = max(0.0, 100 * (1 - (1 - ran.idle / 100) * ran.duration / ideal))
        least = simulate(best, in_a_row(case.ranks, case.chunks))
        return (
            f"the step takes {ran.duration:g} ticks (idle {ran.idle:.0f}%); {ideal:g} are enough "
            f"(idle {idle:.0f}%). {longest_avoidable_wait(ran, least, case.ranks)}"
        )
    return None


def too_much_held(lists: Lists, most: list[int]) -> str | None:
    """Rank r holds at most `most[r]` micro-batches at once, counted per chunk."""
    for rank, (actions, allowed) in enumerate(zip(lists, most, strict=True)):
        if any(action.kind not in tuple(KINDS) for action in actions):
            return f'rank {rank}\'s list has an entry that is not an action. An action looks like this: ("F", 0).'
        held = in_flight(actions)
        if held > allowed:
            first = next(n for n in range(len(actions)) if in_flight(actions[: n + 1]) > allowed)
            return (
                f"rank {rank} holds {held} micro-batches at once; it may hold {allowed}. "
                f"{actions[first]}, entry {first} of its list, is the first that exceeds this."
            )
    return None


def _simulated(case: Case, lists: Lists, costs: Costs) -> Timeline | str:
    """Return the timeline, or why there is none."""
    for rank, actions in enumerate(lists):
        if not actions:
            return f"rank {rank}'s list is empty; it should have the actions of {case.m} micro-batches."
        if any(action.kind not in tuple(KINDS) or action.chunk >= case.chunks for action in actions):
            return f'rank {rank}\'s list has an entry that cannot be run. An action looks like this: ("F", 0).'
    try:
        return simulate(lists, in_a_row(case.ranks, case.chunks), costs)
    except Stuck as error:
        return f"the ranks are deadlocked: {error}."
