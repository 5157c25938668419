"""The collectives that ranks call, by name. An unknown name is an error, not a collective that costs less.

How long one takes is in `collective_seconds.py` (by formula) and `links.py` (on a cluster).
"""

from enum import StrEnum
from typing import NoReturn


class Collective(StrEnum):
    """What ranks do together. `Collective("all-reduce")` finds one by its name.

    Raises:
        ValueError: there is no collective of this name.
    """

    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"
    SHIFT = "shift"  # to the next rank of a ring
    SEND = "send"  # to one other rank

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise ValueError(f"There is no collective {value!r}; choose one of {', '.join(cls)}.")
