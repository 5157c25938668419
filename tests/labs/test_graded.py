"""Graded exercises: the reference and other right answers pass, each mutant fails the check meant for it."""

import importlib
import itertools
import json

from helpers.course.kernel.kernel import LONGEST
from helpers.exercises.checking import find_part, gather, judge, reference_answers, reference_evidence

import pytest

from ..mutants import assert_rejected, reference_text, run_answers, styles, topics, verdicts
from ..sampling import sample

EXERCISES = {name: topics()[name] for name in ("x1", "x2", "x3", "x4", "x5", "x6", "x7")}
RIGHT = [(exercise, name) for exercise, answers in EXERCISES.items() for name in answers.right]
STYLES = [(exercise, name) for exercise in EXERCISES for name in styles(exercise)]
MUTANTS = [mutant for answers in EXERCISES.values() for mutant in answers.mutants]


def parts_of(exercise):
    return importlib.import_module(f"helpers.exercises.{exercise}").PARTS


def missed(exercise, names, seed):
    return [
        (verdict.check, verdict.diagnosis)
        for part in parts_of(exercise)
        for verdict in verdicts(part.name, names, seed)
        if not verdict.passed
    ]


@pytest.mark.parametrize("exercise", EXERCISES)
def test_ten_points_over_at_least_eight_checks(exercise):
    checks = [check for part in parts_of(exercise) for check in part.checks]
    assert sum(check.points for check in checks) == 10
    assert len(checks) >= 8


@pytest.mark.slow
@pytest.mark.parametrize(("exercise", "seed"), sample(list(itertools.product(EXERCISES, [0, 12345])), one_in=6))
def test_reference_earns_full_points(exercise, seed):
    names = run_answers(reference_text(exercise))
    assert missed(exercise, names, seed) == []


@pytest.mark.slow
@pytest.mark.parametrize("part", [part.name for exercise in EXERCISES for part in parts_of(exercise)])
def test_the_grader_accepts_reports_as_long_as_those_of_the_reference(part):
    evidence = gather(find_part(part), reference_answers(find_part(part)), 0)
    assert max(len(json.dumps(entry)) for entry in evidence.values()) < 0.8 * LONGEST


@pytest.mark.slow
@pytest.mark.parametrize(
    ("exercise", "name"),
    sample(RIGHT, one_in=8, topic=lambda pair: pair[0]),
)
def test_differently_written_right_answers_earn_full_points(exercise, name):
    assert missed(exercise, run_answers(EXERCISES[exercise].right[name]), seed=3) == []


@pytest.mark.slow
@pytest.mark.parametrize(("exercise", "name"), sample(STYLES, one_in=12, topic=lambda pair: pair[0]))
def test_right_answers_in_other_styles_earn_full_points(exercise, name):
    part, text = styles(exercise)[name]
    assert [(v.check, v.diagnosis) for v in verdicts(part, run_answers(text), seed=3) if not v.passed] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutant",
    sample(MUTANTS, one_in=20, topic=lambda m: m.topic),
    ids=lambda m: f"{m.part}-{m.name}".replace(" ", "-"),
)
def test_mutant_is_rejected_by_the_check_meant_for_it(mutant):
    assert_rejected(mutant)


@pytest.mark.parametrize("exercise", EXERCISES)
def test_every_check_has_a_mutant(exercise):
    answers = EXERCISES[exercise]
    meant = {(m.part, m.rejected_by) for m in answers.mutants}
    assert meant == {(part.name, check.name()) for part in parts_of(exercise) for check in part.checks}
    assert len(answers.mutants) >= 40
    assert len({mutant.name for mutant in answers.mutants if mutant.part}) >= 40
    assert len(answers.right) >= 2
    assert len(answers.right) + len(styles(exercise)) >= 15


def test_malformed_evidence_costs_points_and_nothing_else():
    part = find_part("x1.scaler")
    expected = reference_evidence(part, 0)
    for junk in ({}, {"scale_grows": None}, {"scale_grows": {"seen": 3}}, {"scale_grows": {"seen": {"scales": "x"}}}):
        passed = {v.check: v.passed for v in judge(part, junk, expected)}
        assert not passed["scale_grows"]
