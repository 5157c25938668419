"""Each exercise's reference runs as a submission does, in the grader's kernel and under its guard, for all points.

Every `make test` does so for half of them: where a reference is refused, nobody's submission is graded.
"""

from helpers.course.build.source import sources
from helpers.course.grade import reference
from helpers.course.grade.judge.result import parts_of
from helpers.course.grade.options import GradeError
from helpers.course.grade.reference import expected_evidence
from helpers.course.grade.run.execute import Run
from helpers.course.grade.run.warm import WarmServers

import pytest

from ..sampling import sample
from .results import CONDITIONS, X1

DUE = sample([source for source in sources() if source.graded], 2, lambda source: source.exercise)


@pytest.fixture(scope="module")
def servers():
    with WarmServers() as warm:
        yield warm


@pytest.mark.slow
@pytest.mark.today
@pytest.mark.parametrize("source", DUE, ids=lambda source: source.exercise)
def test_a_reference_earns_full_points_in_the_graders_kernel(source, servers):
    expected = expected_evidence(source, CONDITIONS, servers, {})  # raises if it does not
    assert sum(map(len, expected.values())) >= 8


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"stopped": "sys.excepthook was replaced."}, "sys.excepthook was replaced."),
        ({"error": "ValueError", "text": "ValueError: 3"}, "ValueError: 3"),
        (None, "it did not report"),
    ],
)
def test_a_reference_that_fails_says_why_in_one_line(entry, why, monkeypatch):
    def evidence(run, cell):
        checks = [check.name() for check in parts_of(reference.reference_hand_in(X1))[cell].checks]
        return {} if entry is None else dict.fromkeys(checks, entry)

    monkeypatch.setattr(reference, "run_hand_in", lambda *args: Run({}, True))
    monkeypatch.setattr(reference, "evidence_of", evidence)
    with pytest.raises(GradeError, match=r"does not pass its own check x1\.") as raised:
        expected_evidence(X1, CONDITIONS, None, {})
    assert f": {why}); no submission was graded." in str(raised.value)
