"""What the checks of an exercise should see: the evidence of the reference solution, run as a submission is run."""

from ...exercises.base import Evidence, Part
from ...exercises.checking import judge
from ..build.source import Source
from .intake.hand_in import reference_hand_in
from .judge.result import evidence_of, parts_of
from .options import GradeError
from .run.execute import run_hand_in
from .run.warm import WarmServers
from .store.conditions import Conditions


def expected_evidence(
    source: Source, conditions: Conditions, servers: WarmServers, seconds: dict[str, float]
) -> dict[str, dict[str, Evidence]]:
    """Return the evidence of the reference, by check cell, then by check.

    Args:
        source, conditions: which exercise, and how its submissions run.
        servers: where they run.
        seconds: receives, by the exercise's name, how long the reference ran; a submission does what it does.

    Raises:
        GradeError: the reference does not earn full points on this machine, so nobody can be graded.
    """
    hand_in = reference_hand_in(source)
    run = run_hand_in(hand_in, conditions.seed, conditions.timeout, servers)
    seconds[source.exercise] = run.seconds
    parts = parts_of(hand_in)
    expected = {cell: evidence_of(run, cell) for cell in parts}
    for cell, part in parts.items():
        missed = _missed(part, expected[cell])
        if missed:
            raise GradeError(
                f"The reference solution of {source.name} does not pass its own check {part.name} on this machine "
                f"({missed}); no submission was graded. Try a longer --timeout (now {conditions.timeout:g} s)."
            )
    return expected


def _missed(part: Part, evidence: dict[str, Evidence]) -> str:
    """Return the first check of `part` that the reference misses, and why; "" if it misses none."""
    for check in part.checks:
        entry = evidence.get(check.name(), {"stopped": "it did not report"})
        if "seen" not in entry:
            return f"{check.name()}: {entry.get('stopped', entry.get('text'))}"
    return next((f"{v.check}: {v.diagnosis}" for v in judge(part, evidence, evidence) if not v.passed), "")
