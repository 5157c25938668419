"""Layouts that people would try, and why they are not among the best."""

from collections.abc import Callable
from dataclasses import dataclass

from ...core.units import human_bytes
from ..layout.layout import Layout
from .best import Search
from .found import Found

TRIED = 3  # layouts of a family that are planned, if the first ones turn out not to fit
_Test = Callable[[Layout], bool]


@dataclass(frozen=True)
class Loser:
    """A family of layouts, and in one line why it loses."""

    name: str
    reason: str


def losers(state: Search) -> list[Loser]:
    """Return the families that are not among the best, each with its reason."""
    best = state.best()
    if not best:
        return []
    families = [
        (name, test) for name, test in _families(state, best[0].layout) if not any(test(f.layout) for f in best)
    ]
    found = [(name, _reason(state, test, best[0])) for name, test in families]
    return [Loser(name, reason) for name, reason in found if reason]


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


def _reason(state: Search, test: _Test, best: Found) -> str:
    """Return why the family is worse than `best`; empty if there is no such layout."""
    numbers = sorted((n for n, (layout, _) in enumerate(state.space) if test(layout)), key=state.bound_value)
    if not numbers:
        return ""
    room = state.question.cluster.gpu.room
    possible = [n for n in numbers if state.space[n][1].nbytes <= room]
    if not possible:
        least = min(state.space[n][1].nbytes for n in numbers)
        return f"does not fit: at least {human_bytes(least)} a GPU, {human_bytes(least - room)} too much"
    known = [n for n in possible if n in state.planned]
    if not any(state.planned[n].fits for n in known):
        state.plan([n for n in possible if n not in state.planned][:TRIED])
        known = [n for n in possible if n in state.planned]
    fitting = [state.planned[n] for n in known if state.planned[n].fits]
    if fitting:
        return _slower(min(fitting, key=lambda f: state.value_of(f)), best, state)
    if not known:
        return "cannot be simulated: " + state.refused[possible[0]]
    least = min(state.planned[n].nbytes for n in known)
    return f"does not fit: {human_bytes(least)} a GPU where it is fastest, {human_bytes(least - room)} too much"


def _slower(found: Found, best: Found, state: Search) -> str:
    if state.question.objective == "memory":
        return f"{human_bytes(found.nbytes - best.nbytes)} more: {found.layout.summary}"
    more = {part: found.parts.get(part, 0.0) - best.parts.get(part, 0.0) for part in {*found.parts, *best.parts}}
    part = max(more, key=lambda part: more[part])
    names = {"compute": "recomputed or slower products", "memory": "passes over memory", "launch": "launches"}
    wires = part not in names and part not in ("bubble", "update")
    what = f"waiting for the {part} ranks" if wires else names.get(part, part)
    share = state.value_of(found) / state.value_of(best) - 1
    return f"{share:.0%} worse, {what} takes {more[part]:.3g} s more: {found.layout.summary}"
