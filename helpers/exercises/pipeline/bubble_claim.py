"""The verdict on a claim about a bubble: within half the distance to the nearest rival, if the clock was that exact."""

from ...claims.claims import Claims
from ...pipelines.clock import Clocked


def record_bubble(claims: Claims, said: str, subject: str, run: Clocked, ideal: float, rival: float) -> None:
    """Add what a run with a clock measured to the claims; without a figure, where late timers alone would decide.

    Args:
        claims: the table of claims.
        said, subject: as in `Claims.record`.
        run: the run.
        ideal: percentage of the step in which a rank is idle, as claimed.
        rival: the percentage of the schedule that comes closest; the claim holds up to halfway between the two.
    """
    band = abs(ideal - rival) / 2
    if run.busy or abs(run.idle - run.ideal.idle) > band:
        claims.not_measured("T19", said, f"{subject}; this machine was too busy")
    else:
        claims.record("T19", said, subject, run.idle, "% idle", ideal - band, ideal + band)
