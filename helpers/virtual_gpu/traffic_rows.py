"""The collectives of a step, as rows of a report."""

from collections import Counter
from typing import Any

from .ledger import Ledger
from .traffic import Row, seconds_of
from .world import World


def collective_rows(ledger: Ledger, step: int, gpu: str, world: World | None) -> list[dict[str, Any]]:
    """Return the collectives of a step, counted from 0, those with the most bytes first; none without other ranks.

    Each row has the name, how many ranks take part, the calls and the bytes of the step, and of the whole run
    ("calls_in_all", "bytes_in_all"), and the forecast seconds of the step (None where no cluster of the GPU is known).
    """
    traffic = ledger.traffic
    if traffic is None or world is None:
        return []
    messages = traffic.messages[step]
    seconds = seconds_of(messages, gpu, world.node)
    calls: Counter[Row] = Counter()
    nbytes: Counter[Row] = Counter()
    for (row, size), times in messages.items():
        calls[row] += times
        nbytes[row] += times * size
    return [
        {
            "name": row.name,
            "ranks": row.ranks,
            "calls": calls[row],
            "bytes": nbytes[row],
            "seconds": None if seconds is None else seconds.get(row, 0.0),
            "calls_in_all": traffic.calls[row],
            "bytes_in_all": traffic.nbytes[row],
        }
        for row in sorted(traffic.calls, key=lambda row: -nbytes[row])
    ]
