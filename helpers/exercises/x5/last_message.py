"""What a rank still holds when the last message is under way: whatever it should have let go of by then."""

from typing import Any

from ...meter.operations_seen import OperationWatch
from ...meter.profile import MemoryProfile
from ...meter.session import clock


class LastMessage(OperationWatch):
    """Notes when the code in its `with` block called `torch.distributed` for the last time.

    Attributes:
        when: in the meter's time; 0 where it did not.
    """

    when = 0

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Note the time of a message."""
        if func.namespace in ("c10d", "_c10d_functional"):
            self.when = clock()


def most_between(begin: int, end: int, profile: MemoryProfile) -> int:
    """Return the most bytes that were held at once from `begin` to `end`, moments in the meter's time."""
    changes = [(life.start, life.nbytes) for life in profile.lifetimes]
    changes += [(life.end, -life.nbytes) for life in profile.lifetimes if life.end is not None]
    held = most = sum(nbytes for moment, nbytes in changes if moment <= begin)
    for _, nbytes in sorted(change for change in changes if begin < change[0] <= end):
        held += nbytes
        most = max(most, held)
    return most
