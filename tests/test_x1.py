"""X1's checks: the reference and two other right answers pass, each mutant is rejected by the check meant for it."""

import inspect

from helpers.exercises.run import NOT_ATTEMPTED_YET, find_part
from helpers.exercises.x1 import PARTS

import pytest

from .mutants import reference, run_answers, verdicts
from .mutants.x1 import MUTANTS, RIGHT


def test_ten_points_over_at_least_eight_checks():
    checks = [check for part in PARTS for check in part.checks]
    assert sum(check.points for check in checks) == 10
    assert len(checks) >= 8


@pytest.mark.parametrize("seed", [0, 12345])
def test_reference_earns_full_points(seed):
    names = run_answers(inspect.getsource(reference("x1.scaler")))
    for part in PARTS:
        assert [v.diagnosis for v in verdicts(part.name, names, seed) if not v.passed] == []


@pytest.mark.parametrize("name", RIGHT)
def test_differently_written_right_answers_earn_full_points(name):
    names = run_answers(RIGHT[name])
    for part in PARTS:
        assert [(v.check, v.diagnosis) for v in verdicts(part.name, names, seed=3) if not v.passed] == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name.replace(" ", "-"))
def test_mutant_is_rejected_by_the_check_meant_for_it(mutant):
    found = {v.check: v for v in verdicts(mutant.part, run_answers(mutant.source()))}
    verdict = found[mutant.rejected_by]
    assert not verdict.passed
    assert verdict.points == 0
    if mutant.raises:
        assert mutant.raises in verdict.diagnosis
    else:  # it must be seen for what it is, not stumble over an exception
        assert not verdict.diagnosis.startswith(("Raised", "The evidence"))


def test_every_check_has_a_mutant():
    meant = {(m.part, m.rejected_by) for m in MUTANTS}
    assert meant == {(part.name, check.name()) for part in PARTS for check in part.checks}


def test_untouched_answers_are_not_attempted():
    def train_step(*args, **kwargs):
        raise NotImplementedError

    class DynamicLossScaler:
        def __init__(self, **kwargs):
            pass

        def scale(self, *args):
            raise NotImplementedError

        get_scale = unscale_ = step = update = scale

    names = {"DynamicLossScaler": DynamicLossScaler, "train_step": train_step, "train": train_step}
    for part in PARTS:
        assert {v.diagnosis for v in verdicts(part.name, names)} == {NOT_ATTEMPTED_YET}
        assert sum(v.points for v in verdicts(part.name, names)) == 0


def test_malformed_evidence_costs_points_and_nothing_else():
    from helpers.exercises.run import judge, reference_evidence

    part = find_part("x1.scaler")
    expected = reference_evidence(part, 0)
    for junk in ({}, {"scale_grows": None}, {"scale_grows": {"seen": 3}}, {"scale_grows": {"seen": {"scales": "x"}}}):
        found = {v.check: v for v in judge(part, junk, expected)}
        assert not found["scale_grows"].passed
