"""An answer cell that nobody filled in is not attempted, for every check of its part: nothing in it is called wrong."""

import functools

from helpers.core.files import ROOT
from helpers.course.build.source import sources
from helpers.exercises.base import Outcome
from helpers.exercises.checking import find_part, gather, judge
from helpers.exercises.filled_in import filled_in

import nbformat
import pytest

from ..mutants import reference_text, run_answers, topics
from ..sampling import sample_with_quick

PARTS = sorted({mutant.part for answers in topics().values() for mutant in answers.mutants})


@functools.cache
def untouched(exercise):
    """Return what the names of an exercise are as its learners get it: reference first, then the cells' stubs."""
    (source,) = [source for source in sources() if source.exercise == exercise]
    names = run_answers(reference_text(exercise))
    notebook = nbformat.read(ROOT / "labs" / f"{source.name}.ipynb", as_version=4)
    for cell in notebook.cells:
        if cell.metadata.get("nbgrader", {}).get("solution", False):
            exec(compile(cell.source, cell.id, "exec"), names)
    return names


@pytest.mark.parametrize(
    "name", sample_with_quick(PARTS, one_in=3, quick_one_in=12, topic=lambda name: name.partition(".")[0])
)
def test_a_part_that_nobody_filled_in_is_not_attempted(name):
    part = find_part(name)
    if part.missing:
        pytest.skip(f"needs {part.needs}")
    answers = tuple(untouched(name.partition(".")[0])[answer] for answer in part.answers)
    unmeasured = {check.name(): {"seen": {}} for check in part.checks}  # nothing is compared with the reference
    judged = judge(part, gather(part, answers, 0), unmeasured)
    assert {v.check: v.outcome for v in judged if v.outcome is not Outcome.NOT_ATTEMPTED} == {}
    assert not all(map(filled_in, answers))
