"""What is graded: the answer cells of a hand-in, put into the instructor's notebook."""

import re
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache

from nbformat import NotebookNode

from ...build.notebooks import make_notebook
from ...build.source import Source

# Comments that nbval obeys, such as NBVAL_SKIP: whether a cell runs is not for the learner to say.
_ORDERS = re.compile(r"#\s*(?=NBVAL_|PYTEST_VALIDATE_)", re.IGNORECASE)


@dataclass
class HandIn:
    """What one student handed in for one exercise.

    Attributes:
        problem: (status, reason) when nothing can be graded.
        flags: what a human should look at; no flag costs a point.
    """

    student: str
    source: Source
    answers: dict[str, str] = field(default_factory=dict)
    problem: tuple[str, str] | None = None
    flags: list[str] = field(default_factory=list)


def reference_hand_in(source: Source) -> HandIn:
    """Return the reference solution as if somebody had handed it in."""
    cells = [cell for cell in make_notebook(source, solved=True).cells if _marked(cell, "solution")]
    return HandIn("reference", source, {cell.id: cell.source for cell in cells})


def stubs_of(source: Source) -> dict[str, str]:
    """Map each answer cell of `source` to what stands in it before anybody has answered."""
    return {cell.id: cell.source for cell in _learners(source).cells if _marked(cell, "solution")}


def title_of(source: Source) -> str:
    """Return the first line of the notebook of `source`."""
    return _learners(source).cells[0].source.partition("\n")[0]


@cache
def _learners(source: Source) -> NotebookNode:
    """Return the notebook that learners get; reading a source takes a while, and each hand-in needs it."""
    return make_notebook(source, solved=False)


def _marked(cell: NotebookNode, mark: str) -> bool:
    return bool(cell.metadata.get("nbgrader", {}).get(mark))


def checks_of(source: Source) -> dict[str, str]:
    """Map each graded check cell of `source` to the name of its part, e.g. {"scaler_check": "x1.scaler"}."""
    cells = [cell for cell in _learners(source).cells if _marked(cell, "grade")]
    return {cell.id: re.search(r'check\("([\w.]+)"', cell.source)[1] for cell in cells}


def grading_notebook(hand_in: HandIn, seed: int) -> NotebookNode:
    """Return the instructor's notebook with the learner's answers in it.

    Set-up and check cells are the instructor's. Check cells ask the grading kernel to collect evidence; a first line
    tells it the name of each answer cell.
    """
    notebook = deepcopy(_learners(hand_in.source))
    cells = []
    for cell in notebook.cells:
        if _marked(cell, "solution"):
            if cell.id not in hand_in.answers:
                continue
            cell.source = f"# cell: {cell.id}\n" + _ORDERS.sub("# (taken out) ", hand_in.answers[cell.id])
        elif _marked(cell, "grade"):
            cell.source = re.sub(r"^check\((.*)\)$", rf"collect(\1, seed={seed})", cell.source)
        elif "setup" not in cell.metadata.get("tags", []):
            continue
        cells.append(cell)
    notebook.cells = cells
    return notebook
