"""Wrong answers, each with the check that must reject it, and right answers that must pass.

A mutant is the reference with a few words replaced, so that it stays in step with the reference: a
replacement that no longer fits fails the tests.
"""

import importlib
import pkgutil
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

from helpers.exercises import reference as answers
from helpers.exercises.base import Outcome, Part, Verdict
from helpers.exercises.checking import find_part, gather, judge, reference_evidence

from .evidence import assert_measurements

_TOOLS = {"clauses", "contracts", "edits", "equivalent", "evidence", "search", "styles", "table", "trial"}


@dataclass(frozen=True)
class Mutant:
    name: str
    part: str
    rejected_by: str
    replace: tuple[tuple[str, str], ...]
    raises: str = ""  # words that the diagnosis must have: PyTorch's, where it refuses the mutant, or a mistake's name

    @property
    def topic(self) -> str:
        return self.part.partition(".")[0]

    def source(self) -> str:
        text = reference_text(self.part)
        for old, new in self.replace:
            assert text.count(old) == 1, f"{self.name}: {old!r} stands {text.count(old)} times in the reference"
            text = text.replace(old, new)
        return text


def topics() -> dict[str, ModuleType]:
    """Return the modules of wrong and right answers, by the name of their exercise."""
    names = [info.name for info in pkgutil.iter_modules(__path__) if info.name not in _TOOLS]
    return {name: importlib.import_module(f"{__name__}.{name}") for name in names}


def styles(exercise: str) -> dict[str, tuple[str, str]]:
    """Return right answers to parts of an exercise, by name: the part, and the text of the whole answer module."""
    module = importlib.import_module(f"{__name__}.styles.{exercise}")
    text = reference_text(exercise)
    return {name: (part, f"{text}\n\n{own}") for name, (part, own) in module.STYLES.items()}


def one(name: str, part: str, rejected_by: str, old: str, new: str, raises: str = "") -> Mutant:
    """A mutant with one replacement."""
    return Mutant(name, part, rejected_by, ((old, new),), raises)


def reference(part: str) -> ModuleType:
    return importlib.import_module(f"helpers.exercises.reference.{part.partition('.')[0]}")


def reference_text(part: str) -> str:
    """Return the source of the reference answers; no test is collected by importing what they import."""
    return (Path(answers.__path__[0]) / f"{part.partition('.')[0]}.py").read_text(encoding="utf-8")


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
    if mutant.raises:
        assert mutant.raises in verdict.diagnosis
    else:
        assert verdict.outcome is Outcome.MISSED, verdict.diagnosis
