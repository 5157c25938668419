"""What the notebook of an exercise holds: answer cells with their stubs, check cells, a title."""

from functools import cache

from nbformat import NotebookNode

from ...build.notebooks import make_notebook
from ...build.source import Source, checked_part
from ...build.stubs import PLACEHOLDER


@cache
def learner_notebook(source: Source) -> NotebookNode:
    """Return the notebook that learners get. It is made once, since every submission needs it: copy it to change it."""
    return make_notebook(source, solved=False)


def is_answer_cell(cell: NotebookNode) -> bool:
    """Say whether learners write into `cell`."""
    return _has_mark(cell, "solution")


def is_check_cell(cell: NotebookNode) -> bool:
    """Say whether `cell` holds a graded check."""
    return _has_mark(cell, "grade")


def _has_mark(cell: NotebookNode, mark: str) -> bool:
    return bool(cell.metadata.get("nbgrader", {}).get(mark))


def stubs_of(source: Source) -> dict[str, str]:
    """Map each answer cell of `source` to its text before anybody has answered."""
    return {cell.id: cell.source for cell in learner_notebook(source).cells if is_answer_cell(cell)}


def solutions_of(source: Source) -> dict[str, str]:
    """Map each answer cell of `source` to the reference solution."""
    return {cell.id: cell.source for cell in make_notebook(source, solved=True).cells if is_answer_cell(cell)}


def checks_of(source: Source) -> dict[str, str]:
    """Map each graded check cell of `source` to the name of its part, e.g. {"scaler_check": "x1.scaler"}."""
    cells = [cell for cell in learner_notebook(source).cells if is_check_cell(cell)]
    return {cell.id: checked_part(cell.source) for cell in cells}


def title_of(source: Source) -> str:
    """Return the first line of the notebook of `source`."""
    return learner_notebook(source).cells[0].source.partition("\n")[0]


def has_placeholder(answer: str) -> bool:
    """Say whether `answer` still raises the error that stubs raise."""
    return PLACEHOLDER.splitlines()[-1] in answer
