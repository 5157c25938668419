"""What is graded: the answer cells of a submission, put into the instructor's notebook."""

import re
from copy import deepcopy
from dataclasses import dataclass, field

from nbformat import NotebookNode

from ...build.source import Source
from .exercise_notebook import is_answer_cell, is_check_cell, learner_notebook, solutions_of

# Comments that nbval obeys, such as NBVAL_SKIP: whether a cell runs is not for the learner to say.
_NBVAL_COMMENT = re.compile(r"#\s*(?=NBVAL_|PYTEST_VALIDATE_)", re.IGNORECASE)


@dataclass(frozen=True)
class HandIn:
    """What one student handed in for one exercise.

    Attributes:
        answers: the student's code, by answer cell.
        problem: (status, reason) when nothing can be graded.
        flags: what a human should look at; no flag costs a point.
        canvas: what Canvas put before the file's name, as "lovelaceada_LATE_12345_67890"; "" if it came from elsewhere.
    """

    student: str
    source: Source
    answers: dict[str, str] = field(default_factory=dict)
    problem: tuple[str, str] | None = None
    flags: list[str] = field(default_factory=list)
    canvas: str = ""


def reference_hand_in(source: Source) -> HandIn:
    """Return the reference solution as if somebody had handed it in."""
    return HandIn("reference", source, solutions_of(source))


def grading_notebook(hand_in: HandIn, seed: int) -> NotebookNode:
    """Return the instructor's notebook with the learner's answers in it.

    Set-up and check cells are the instructor's. Check cells ask the grading kernel to collect evidence; a first line
    tells it the name of each answer cell.
    """
    notebook = deepcopy(learner_notebook(hand_in.source))
    cells = []
    for cell in notebook.cells:
        if is_answer_cell(cell):
            if cell.id not in hand_in.answers:
                continue
            cell.source = f"# cell: {cell.id}\n" + _NBVAL_COMMENT.sub("# (taken out) ", hand_in.answers[cell.id])
        elif is_check_cell(cell):
            cell.source = re.sub(r"^check\((.*)\)$", rf"collect(\1, seed={seed})", cell.source)
        elif "setup" not in cell.metadata.get("tags", []):
            continue
        cells.append(cell)
    notebook.cells = cells
    return notebook
