"""Layouts that people would try, and why they are not among the best."""

from collections.abc import Callable
from dataclasses import dataclass

from ...core.units import human_bytes
from ..layout.layout import Layout
from .best import Search, Tell, probe_one
from .found import Found, ties_with
from .names import name
from .workers import Workers

ROUNDS = 6  # in each, one layout of a family gets a closer bound, or is planned
_Test = Callable[[Layout], bool]


@dataclass(frozen=True)
class Loser:
    """A family of layouts, and in one line why it loses.

    Attributes:
        name: of the family.
        reason: why it loses, with the fastest of its layouts that is known.
        ties: whether the forecast cannot tell that layout from the best: its error may be larger than the difference.
    """

    name: str
    reason: str
    ties: bool = False


def losers(state: Search, workers: Workers | None = None, tell: Tell = lambda what, done, of: None) -> list[Loser]:
    """Return the families that are not among the best, each with its reason."""
    best = state.best()
    if not best:
        return []
    families = [
        _Family(name, state, test)
        for name, test in _families(state, best[0].layout)
        if not any(test(found.layout) for found in best)
    ]
    _plan(state, families, workers or Workers(0), tell)
    return [
        Loser(family.name, _reason(state, family, best[0]), _ties(state, family, best[0]))
        for family in families
        if family.numbers
    ]


class _Family:
    """Layouts that have something in common: their numbers, and of those that may fit, the most promising first."""

    def __init__(self, name: str, state: Search, test: _Test) -> None:
        self.name = name
        self.numbers = [number for number, layout in enumerate(state.space) if test(layout)]

    def possible(self, state: Search) -> list[int]:
        """Return those that may fit, in the order of their bounds."""
        possible = (n for n in self.numbers if n in state.seconds and state.nbytes[n] <= state.room)
        return sorted(possible, key=state.bound_value)

    def known(self, state: Search) -> list[Found]:
        """Return those that were planned."""
        return [state.planned[n] for n in self.numbers if n in state.planned]

    def next(self, state: Search) -> int | None:
        """Return the layout to be planned, or probed, next; None if it is known why the family loses."""
        if any(found.fits for found in self.known(state)):
            return None
        while True:
            waiting = (n for n in self.possible(state) if n not in state.planned and n not in state.refused)
            number = next(waiting, None)
            plain = None if number is None else state.probe(number)
            if plain is None or not state.knows(plain):
                return number
            state.come_closer(number, plain)


def _plan(state: Search, families: list[_Family], workers: Workers, tell: Tell) -> None:
    """Plan layouts of each family, a round after the other, until one fits."""
    for turn in range(ROUNDS):
        tell("trying common layouts", turn, ROUNDS)
        asked, jobs, done = set(), 0, 0
        for number in {n for family in families if (n := family.next(state)) is not None}:
            plain = state.probe(number)
            if plain is None:
                state.submit(number, workers)
                jobs += 1
            elif plain not in asked:  # by several families
                asked.add(plain)
                workers.submit(None, probe_one, plain, tag=plain)
                jobs += 1
        while workers.busy:
            for tag, answer in workers.done():
                state.enter(tag, answer)
                done += 1
                tell("trying common layouts", turn + done / jobs, ROUNDS)
    tell("trying common layouts", ROUNDS, ROUNDS)  # the last rounds may have nothing to plan


def _families(state: Search, best: Layout) -> list[tuple[str, _Test]]:
    node, gpus = state.question.cluster.node, state.question.gpus
    flat = lambda l: l.tensor == l.pipeline == l.context == 1 and l.ranks == gpus  # noqa: E731, E741
    again = "without recomputation" if best.recompute != "none" else "with full recomputation"
    other = "none" if best.recompute != "none" else "full"
    return [
        ("pure DDP", lambda l: flat(l) and l.zero == "none"),  # noqa: E741
        ("pure FSDP, nothing recomputed", lambda l: flat(l) and l.zero == "zero3" and l.recompute == "none"),  # noqa: E741
        ("pure FSDP", lambda l: flat(l) and l.zero == "zero3" and l.replicate == 1),  # noqa: E741
        ("HSDP, a shard per node", lambda l: flat(l) and l.zero == "zero3" and l.shard == node < gpus),  # noqa: E741
        ("FSDP with TP in the node", lambda l: l.zero == "zero3" and 1 < l.tensor <= node and _two(l)),  # noqa: E741
        ("TP over nodes", lambda l: l.tensor > node),  # noqa: E741
        ("Megatron: TP in the node, PP, ZeRO-1", lambda l: l.zero == "zero1" and l.tensor == node and l.pipeline > 1),  # noqa: E741
        ("pipeline without TP", lambda l: l.pipeline > 1 and l.tensor == l.context == 1),  # noqa: E741
        ("GPipe", lambda l: l.schedule == "gpipe"),  # noqa: E741
        ("1F1B without virtual stages", lambda l: l.pipeline > 1 and l.schedule == "1f1b"),  # noqa: E741
        (f"the best {again}", lambda l: _grid(l) == _grid(best) and l.recompute == other),  # noqa: E741
    ]


def _two(layout: Layout) -> bool:
    return layout.pipeline == layout.context == 1


def _grid(layout: Layout) -> tuple[int | str, ...]:
    return layout.tensor, layout.pipeline, layout.context, layout.expert, layout.zero


def _reason(state: Search, family: _Family, best: Found) -> str:
    """Return why a family is worse than `best`."""
    known = family.known(state)
    fitting = [found for found in known if found.fits]
    if fitting:
        return _slower(min(fitting, key=state.value_of), best, state)
    if not family.possible(state):
        least = min(state.nbytes[n] for n in family.numbers)
        return f"does not fit: at least {human_bytes(least)} per GPU, {human_bytes(least - state.room)} too much"
    waiting = [n for n in family.possible(state) if n not in state.planned and n not in state.refused]
    if waiting:
        share = state.bound_value(waiting[0]) / state.value_of(best) - 1
        return f"at least {share:.0%} worse where it fits: {name(state.space[waiting[0]])}"
    if known:
        least = min(found.nbytes for found in known)
        return f"does not fit: {human_bytes(least)} per GPU where fastest, {human_bytes(least - state.room)} too much"
    return "cannot be simulated: " + next(state.refused[n] for n in family.numbers if n in state.refused)


def _ties(state: Search, family: _Family, best: Found) -> bool:
    """Return whether the fastest layout of a family that was planned, and fits, ties with `best`."""
    fitting = [found for found in family.known(state) if found.fits]
    return bool(fitting) and ties_with(best, min(fitting, key=state.value_of), state.question.objective)


def _slower(found: Found, best: Found, state: Search) -> str:
    if state.question.objective == "memory":
        return f"{human_bytes(found.nbytes - best.nbytes)} more: {name(found.layout)}"
    more = {part: found.parts.get(part, 0.0) - best.parts.get(part, 0.0) for part in {*found.parts, *best.parts}}
    part = max(more, key=lambda part: more[part])
    names = {"compute": "recomputed or slower matmuls", "memory": "memory traffic", "launch": "kernel launches"}
    names |= {"bubble": "the pipeline's bubble", "update": "the optimizer's update"}
    what = names.get(part, f"waiting for the {part} ranks")
    share = state.value_of(found) / state.value_of(best) - 1
    return f"{share:.0%} worse, {more[part]:.3g} s more for {what}: {name(found.layout)}"
