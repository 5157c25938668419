"""What a reader wants to know first: what failed, what was left out, and how far off the instruments are."""

import statistics
from collections import Counter
from collections.abc import Sequence

from ...claims.measurement import Measurement
from ...claims.receipt import Receipt
from .state import FAILED, INTERRUPTED, SKIPPED, LaneState
from .steps import LaneStep

PEAKS = {
    "measured / predicted peak": "planner: measured against predicted peak",
    "the meter's peak is the allocator's": "meter: its peak against the allocator's",
}


def summary(steps: Sequence[LaneStep], state: LaneState, receipt: Receipt | None) -> str:
    """Return the summary of `steps`, with the errors of planner and meter where `receipt` has them."""
    statuses = {step.name: state.status(step.name, step.digest) for step in steps}
    counts = Counter(status or "not yet run" for status in statuses.values())
    lines = [
        f"{len(statuses)} step{'s' * (len(statuses) != 1)}: "
        + ", ".join(f"{n} {status}" for status, n in counts.most_common())
    ]
    for wanted in (FAILED, SKIPPED, INTERRUPTED):
        lines += [f"  {wanted}: {name}: {state.outcomes[name].words}" for name, s in statuses.items() if s == wanted]
    rows = [row for _, row in receipt.rows()] if receipt else []
    return "\n".join([*lines, *(_errors(words, rows, said) for said, words in PEAKS.items())])


def _errors(words: str, rows: Sequence[Measurement], said: str) -> str:
    """Return median and worst error of the ratios that were recorded as `said`."""
    errors = {row.subject: abs(row.measured - 1) for row in rows if row.said == said and row.measured is not None}
    if not errors:
        return f"{words}: not measured yet"
    worst = max(errors, key=errors.get)
    middle = statistics.median(errors.values())
    return f"{words}: {len(errors)} cases, median error {middle:.2%}, worst {errors[worst]:.2%} ({worst})"
