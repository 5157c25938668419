"""How long a class will take: what is printed once the references have run."""

from helpers.course.grade.class_run import time_needed

import pytest

SECONDS = {"x1": 14.2, "x4": 30.0}


@pytest.mark.parametrize(
    ("exercises", "jobs", "said"),
    [
        (["x1"], 8, "1 submission will take about 20 s: 14 s for each x1, 1 at a time."),
        (["x1"] * 40, 2, "40 submissions will take about 5 min: 14 s for each x1, 2 at a time."),
        (["x1"] * 40, 1, "40 submissions will take about 10 min: 14 s for each x1, 1 at a time."),
        (
            ["x1", "x4"],
            8,
            "2 submissions will take about 30 s: 14 s for each x1 and 30 s for each x4, 2 at a time.",
        ),
    ],
)
def test_the_time_of_a_class_is_that_of_its_references_shared_among_the_jobs(exercises, jobs, said):
    assert time_needed(exercises, SECONDS, jobs) == said


def test_an_exercise_counts_by_its_submissions():
    few, many = (time_needed(["x1"] * (100 - slow) + ["x4"] * slow, SECONDS, 2) for slow in (0, 100))
    assert "about 12 min" in few
    assert "about 25 min" in many
