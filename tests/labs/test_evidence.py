"""No text that a probe returns reaches a verdict: probes measure, judges write.

Every test of a mutant or of a right answer holds its checks to this rule (`tests/mutants/evidence.py`). Here the rule
itself is tried, on checks that break it.
"""

from helpers.exercises.base import Check, Part
from helpers.exercises.checking import find_part

import pytest

from ..mutants import assert_rejected, topics
from ..mutants.evidence import MARK, assert_measurements, marked, passes_text_on

RIGHT = {"shape": [2, 3], "dtype": "float32", "two rows": 1.0}


class _Planted(Check):
    """A check whose evidence is made by hand."""

    @staticmethod
    def probe(seed):
        raise AssertionError("not probed here")


class Echoes(_Planted):
    """Its probe writes the diagnosis."""

    @staticmethod
    def judge(seen, expected):
        return seen.get("wrong")


class EchoesKeys(_Planted):
    """Its probe writes the diagnosis, as a key."""

    @staticmethod
    def judge(seen, expected):
        return next((f"The {what} is off." for what, off in seen.items() if off and off is not RIGHT["shape"]), None)


class Words(_Planted):
    """Its judge writes the diagnosis, of names and numbers."""

    @staticmethod
    def judge(seen, expected):
        wrong = [case for case in expected if seen[case] != expected[case]]
        return f"{wrong[0]}: {seen[wrong[0]]}; {expected[wrong[0]]} is right." if wrong else None


@pytest.mark.parametrize(
    ("check", "evidence"),
    [
        (Echoes, {"wrong": "B does not start at zero."}),
        (Echoes, {"wrong": "1, 0.02 on average"}),
        (EchoesKeys, {"weight merged twice": 0.5}),
    ],
)
def test_a_probe_that_writes_the_diagnosis_is_caught(check, evidence):
    assert passes_text_on(check, evidence, {})
    part = Part("planted.part", (), (check,))
    with pytest.raises(AssertionError, match="its probe writes what its judge should"):
        assert_measurements(part, {check.name(): {"seen": evidence}}, {check.name(): {"seen": {}}})


@pytest.mark.parametrize("wrong", [{"dtype": "bfloat16"}, {"shape": [3, 2]}, {"two rows": 2.0}])
def test_names_and_numbers_may_be_quoted(wrong):
    seen = RIGHT | wrong
    assert Words.judge(seen, RIGHT)
    assert not passes_text_on(Words, seen, RIGHT)


def test_an_error_of_the_answer_may_be_quoted_and_is_not_judged():
    assert marked({"error": "TypeError", "text": "not a Tensor"}, set()) == {
        "error": "TypeError",
        "text": "not a Tensor",
    }
    assert marked(["not a Tensor"], set()) == [MARK]
    entry = {"error": "TypeError", "text": "TypeError: not a Tensor"}
    assert_measurements(Part("planted.part", (), (Echoes,)), {"echoes": entry}, {"echoes": {"seen": {}}})


def test_the_tests_of_mutants_hold_to_the_rule(monkeypatch):
    (check,) = find_part("start_here.bytes").checks
    monkeypatch.setattr("tests.mutants.EXPECTED", {})
    monkeypatch.setattr(check, "probe", staticmethod(lambda seed, answer: {"wrong": "twice as many bytes"}))
    monkeypatch.setattr(check, "judge", staticmethod(Echoes.judge))
    with pytest.raises(AssertionError, match="its probe writes what its judge should"):
        assert_rejected(topics()["start_here"].mutants[0])
