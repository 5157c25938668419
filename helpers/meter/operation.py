"""The operations of a training step, as the meter and the planner name them."""

import bisect
from collections.abc import Sequence
from typing import NamedTuple


class Op(NamedTuple):
    """One operation: when it began, in which phase of the step, its name, and the module it worked for."""

    when: int
    phase: str
    name: str
    module: str

    def __str__(self) -> str:
        return f"{self.phase}: {self.name}" + (f" in {self.module}" if self.module else "")


NO_OP = Op(0, "before", "made earlier", "")


def op_at(ops: Sequence[Op], when: int) -> Op:
    """Return the last of `ops` that had begun at `when`; `NO_OP` if none had."""
    running = bisect.bisect_right(ops, when, key=lambda op: op.when) - 1
    return ops[running] if running >= 0 else NO_OP
