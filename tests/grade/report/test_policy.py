"""What checks are worth is one file's to say; a bad one is refused in one line."""

from helpers.course.grade.report.policy import Policy, PolicyError, read_policy
from helpers.exercises.base import Outcome
from helpers.exercises.checking import NOT_ATTEMPTED_YET

import pytest

from ..results import TOO_LARGE, missing, result

MISSED = {
    "scale_grows": TOO_LARGE,
    "loss_in_fp32": (Outcome.RAISED, "Raised ValueError: as an example"),
    "steps_in_a_row": (Outcome.NOT_RUN, "Did not run: the kernel died."),
    "memory_falls": (Outcome.NOT_ATTEMPTED, NOT_ATTEMPTED_YET),
}


def read(tmp_path, text):
    (tmp_path / "policy.toml").write_text(text, encoding="utf-8")
    return read_policy(tmp_path / "policy.toml")


def test_checks_can_be_worth_more_and_wrong_answers_something(tmp_path):
    policy = read(tmp_path, '[worth]\n"x1.accuracy_holds" = 3\n[credit]\nmissed = 0.5\nraised = 0.25\n')
    graded = policy.applied(result(missed=MISSED))
    assert (graded.total, graded.maximum) == (6 + 2 + 0.5 + 0.25, 12)
    points = {v.check: v.points for v in graded.verdicts}
    assert [points[check] for check in ("accuracy_holds", *MISSED)] == [3, 0.5, 0.25, 0, 0]
    assert policy.applied(missing()).total == 0


def test_without_a_policy_nothing_changes():
    assert Policy().applied(result(missed=MISSED)) == result(missed=MISSED)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[worth", "is not TOML"),
        ("[bonus]\nx = 1", "has 'bonus'"),
        ('[worth]\n"x1.no_such" = 1', "[worth] x1.no_such, which does not exist"),
        ('[worth]\n"x1.scale_grows" = -1', "must be a number from 0 to 100"),
        ("[credit]\nmissed = true", "must be a number from 0 to 1"),
        ("[credit]\nmissed = nan", "must be a number from 0 to 1"),
        ("credit = 1", "has 'credit'"),
    ],
)
def test_a_bad_policy_is_refused_in_one_line(tmp_path, text, words):
    with pytest.raises(PolicyError) as error:
        read(tmp_path, text)
    assert words in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_a_policy_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(PolicyError, match="cannot be read"):
        read_policy(tmp_path / "nowhere.toml")
