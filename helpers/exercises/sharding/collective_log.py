"""A rank's log, in order: collectives, each with the ranks that took part, and notes between them."""

from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ...ranks.collectives import Collective, Collectives


class Event(NamedTuple):
    """One line of a log.

    Attributes:
        name: of the collective, or the text of a note.
        volume: bytes that a rank sends in a ring of many ranks: see `Collective.volume`.
        ranks: those that took part; empty for a note.
    """

    name: str
    volume: int = 0
    ranks: tuple[int, ...] = ()


class CollectiveLog(Collectives):
    """Records the collectives in its `with` block, and the notes made between them with `note`.

    >>> with CollectiveLog() as log:  # doctest: +SKIP
    ...     model(x).sum().backward()
    >>> log.volume_among([0, 2])  # doctest: +SKIP
    """

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Record the operation if it is a collective."""
        before = len(self.calls)
        super().see(func, args, kwargs, result)
        for call in self.calls[before:]:
            self.events.append(_event(call, args))

    def note(self, text: str) -> None:
        """Add a note to the log."""
        self.events.append(Event(text))

    def volume_among(self, ranks: list[int]) -> int:
        """Return the bytes of the collectives in which exactly these ranks took part."""
        return sum(event.volume for event in self.events if list(event.ranks) == ranks)


def _event(call: Collective, args: tuple[Any, ...]) -> Event:
    for arg in args:
        if isinstance(arg, torch.ScriptObject):  # the group or the reduction; only the group can be unboxed
            try:
                group = dist.ProcessGroup.unbox(arg)
            except RuntimeError:
                continue
            return Event(call.name, call.volume, tuple(dist.get_process_group_ranks(group)))
    return Event(call.name, call.volume)
