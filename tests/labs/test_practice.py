"""Practice checks carry no points and are held to the same standard: mutants die, right answers pass."""

import importlib
import pkgutil

from helpers.exercises import reference as answer_modules
from helpers.exercises.checking import find_part

import pytest

from ..mutants import assert_rejected, reference_text, run_answers, styles, topics, verdicts
from ..sampling import runs_whole, sample, sample_with_quick

GRADED = ("x1", "x2", "x3", "x4", "x5", "x6", "x7")
LABS = {topic: answers for topic, answers in topics().items() if topic not in GRADED}
MUTANTS = [mutant for answers in LABS.values() for mutant in answers.mutants]
RUNNABLE = [mutant for mutant in MUTANTS if not find_part(mutant.part).missing]  # an optional package is not here
RIGHT = [(topic, name) for topic, answers in LABS.items() for name in (*answers.right, *styles(topic))]


def test_every_exercise_has_wrong_and_right_answers():
    assert set(topics()) == {info.name for info in pkgutil.iter_modules(answer_modules.__path__)}


@pytest.mark.parametrize(
    "mutant",
    sample_with_quick(RUNNABLE, one_in=16, quick_one_in=24, topic=lambda m: m.topic),
    ids=lambda m: f"{m.part}-{m.name}".replace(" ", "-"),
)
def test_mutant_is_rejected(mutant):
    assert_rejected(mutant)


@pytest.mark.slow  # all parts of a topic: the capstone's take a minute
@pytest.mark.parametrize(("topic", "name"), sample(RIGHT, one_in=12, topic=lambda pair: pair[0]))
def test_differently_written_right_answers_pass(topic, name):
    part, text = styles(topic).get(name) or (topic, LABS[topic].right[name])
    names = run_answers(text)
    seed = 5 if runs_whole() else 0  # with 0 the reference has been probed for the mutants already
    for part in {m.part for m in LABS[topic].mutants if m in RUNNABLE and part in (topic, m.part)}:
        assert [v.diagnosis for v in verdicts(part, names, seed=seed) if not v.passed] == []


@pytest.mark.parametrize("part", sample_with_quick(sorted({m.part for m in RUNNABLE}), one_in=6, quick_one_in=4))
def test_reference_passes(part):
    assert all(v.passed for v in verdicts(part, run_answers(reference_text(part))))


def test_every_check_has_mutants_and_two_right_answers():
    modules = [importlib.import_module(f"helpers.exercises.{topic}") for topic in LABS]
    checks = {(p.name, c.name()) for module in modules for p in module.PARTS for c in p.checks}
    assert {(m.part, m.rejected_by) for m in MUTANTS} == checks
    assert all(len(answers.right) >= 2 for answers in LABS.values())
