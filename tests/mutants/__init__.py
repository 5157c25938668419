"""Judge the wrong and the right answers that `tests/answers` holds, as grading does, and tell how good the checks are.

The modules beside this one are tools: which check rejects which mutant (`table`), what edits by machine get through
(`search`), which clause of a contract each check judges (`clauses`).
"""

import importlib
from dataclasses import replace
from types import ModuleType

from helpers.exercises.base import Outcome, Part, Verdict
from helpers.exercises.checking import find_part, gather, judge, reference_evidence

from ..answers import Answers, Mutant, reference_text, styles, topics
from .evidence import assert_measurements

__all__ = ["Answers", "Mutant", "reference_text", "styles", "topics"]  # so that tests import all from here


def reference(part: str) -> ModuleType:
    return importlib.import_module(f"helpers.exercises.reference.{part.partition('.')[0]}")


def run_answers(source: str) -> dict:
    """Run the text of an answer module and return its names."""
    names: dict = {"__name__": "answers"}
    exec(compile(source, "answers", "exec"), names)
    return names


EXPECTED: dict = {}  # by part, seed and check, what the reference's probes measured


def expected_of(part: Part, seed: int) -> dict:
    """Return the reference's evidence for the checks of `part`; each is measured once."""
    missing = tuple(check for check in part.checks if (part.name, seed, check.name()) not in EXPECTED)
    if missing:
        for name, evidence in reference_evidence(replace(part, checks=missing), seed).items():
            EXPECTED[part.name, seed, name] = evidence
    return {check.name(): EXPECTED[part.name, seed, check.name()] for check in part.checks}


def verdicts(part_name: str, names: dict, seed: int = 0, only: str = "") -> list[Verdict]:
    """Judge the answers in `names` for one part, as grading does; by one of its checks if `only` names it."""
    part = find_part(part_name)
    if only:
        part = replace(part, checks=tuple(check for check in part.checks if check.name() == only))
    expected = expected_of(part, seed)
    evidence = gather(part, tuple(names[answer] for answer in part.answers), seed)
    assert_measurements(part, evidence, expected)
    return judge(part, evidence, expected)


def assert_rejected(mutant: Mutant) -> None:
    """The check meant for `mutant` sees it for what it is, and does not stumble over an exception."""
    (verdict,) = verdicts(mutant.part, run_answers(mutant.source()), only=mutant.rejected_by)
    assert not verdict.passed
    assert verdict.points == 0
    if mutant.says:
        assert mutant.says in verdict.diagnosis
    else:
        assert verdict.outcome is Outcome.MISSED, verdict.diagnosis
