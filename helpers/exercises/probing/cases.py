"""One observation of many cases: ranks are started once for each number of them, and go through a table of cases."""

from collections.abc import Callable, Mapping
from typing import Any

from ..base import Evidence
from .named_case import case_named, note_case
from .on_ranks import on_ranks


def cases_on_ranks(work: Callable[..., Any], table: Mapping[int, Mapping[str, Any]], *args: Any) -> Evidence:
    """Return what `work(*args, case)` returns on each rank of each case: {"2 ranks, name of the case": a list}.

    Args:
        work: called on each rank, once for each case.
        table: by number of ranks, cases by name; the calls are made in this order.
        args: for every rank.

    Raises:
        RankError: a rank failed or did not come back; the message says in which case.
    """
    seen = {}
    for ranks, cases in table.items():
        with case_named(ranks) as folder:
            found = on_ranks(_each, ranks, work, dict(cases), folder, args)
        seen |= {case_name(ranks, name): [rank[name] for rank in found] for name in cases}
    return seen


def case_name(ranks: int, name: str) -> str:
    """Return what the evidence calls a case."""
    return f"{ranks} rank{'s' * (ranks > 1)}, {name}"


def _each(work: Callable[..., Any], cases: dict[str, Any], folder: str, args: tuple[Any, ...]) -> Evidence:
    """One rank: all cases, one after the other."""
    seen = {}
    for name, case in cases.items():
        note_case(folder, name)
        seen[name] = work(*args, case)
    return seen
