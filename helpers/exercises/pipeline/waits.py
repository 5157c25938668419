"""Where a rank waits longer than it must, found by comparison with the timeline of lists that do not."""

from collections.abc import Sequence
from itertools import pairwise

from ...pipelines.action import Action
from ...pipelines.timeline import Entry, Timeline


def longest_avoidable_wait(ran: Timeline, best: Timeline, ranks: int) -> str:
    """Describe the wait that costs a rank the most time in comparison with `best`, and how much of it is needed.

    Any pipeline has waits: for the first micro-batch to arrive, for the first gradient to come back. `best` shows
    them. The avoidable part of a wait is the delay that it adds, relative to the time at which the same rank of `best`
    has done the same amount of work.
    """
    waits = []
    for rank, log in enumerate(ran.logs):
        work = late = 0.0
        for before, after in pairwise([None, *log]):
            free = before.end if before else 0.0
            delay = after.start - _start(best.logs[rank], work)
            wait = after.start - free
            waits.append((round(min(wait, delay - late), 6), -free, rank, wait, before, after))
            late, work = max(late, delay), work + after.end - after.start
    avoidable, _, rank, wait, before, after = max(
        waits, key=lambda one: one[:2]
    )  # of equal ones the first, because it causes the others
    if avoidable <= 0:
        return ""
    place = f"between {_name(before, ranks)} and" if before else "before its first action,"
    needed = round(wait - avoidable, 6)
    enough = f"{needed:g} {'is' if needed == 1 else 'are'}" if needed else "none is"
    return (
        f"The longest avoidable wait is rank {rank}'s {place} {_name(after, ranks)}: "
        f"{wait:g} tick{'s' * (wait != 1)} where {enough} needed."
    )


def _start(log: Sequence[Entry], work: float) -> float:
    """Return when a rank continues after `work` ticks of work."""
    for entry in log:
        length = entry.end - entry.start
        if work < length - 1e-9:
            return entry.start + work
        work -= length
    return log[-1].end


def _name(entry: Entry, ranks: int) -> Action:
    return Action(entry.kind, entry.micro_batch, entry.stage // ranks)
