"""Feedback for Canvas: Gradebook, an assignment's menu, Re-Upload Submissions.

Canvas takes a ZIP file and attaches each file in it to a comment on a submission. Whose that is it tells by the name
under which it had handed the submission out: NAME_USER_ATTACHMENT_FILE, the numbers being its own for the student and
for the file (`generate_comments_from_files` in the sources of Canvas). It shows the new file under the name of the old
one, so what goes back for a notebook has to be a notebook.
"""

import io
import zipfile
from collections.abc import Iterable

from nbformat import writes
from nbformat.v4 import new_notebook, new_raw_cell

from ....exercises.base import Outcome
from ...build.source import sources
from ..judge.result import Result
from .feedback import sections


def canvas_feedback(results: Iterable[Result]) -> bytes | None:
    """Return a ZIP file with a notebook for each result of a student whose submission came from Canvas.

    Args:
        results: of one exercise: Canvas takes the files of one assignment at a time.

    Returns:
        None if no submission came from Canvas.
    """
    names = {source.exercise: source.name for source in sources() if source.graded}
    theirs = [r for r in results if r.answers and r.canvas]
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for r in sorted(theirs, key=lambda r: r.student):
            name = f"{r.canvas}_{names[r.exercise]}.ipynb"
            text = writes(_notebook(r)).encode(errors="backslashreplace")
            archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)  # dated 1980, always the same
    return file.getvalue() if theirs else None


def _notebook(result: Result) -> dict:
    """Return the feedback as raw cells: they show words as they stand, whoever wrote them."""
    head = f"{result.exercise.upper()}: {result.total} of {result.maximum} points ({result.status}). {result.reason}"
    texts = [head]
    for part in sections(result):
        lines = [f"{part.title}: {part.points} of {part.maximum} points"]
        for missed in part.missed:
            blank = missed.verdicts[0].outcome is Outcome.NOT_ATTEMPTED
            lines += ["", "Not attempted:" if blank else f"Missed: {missed.diagnosis}"]
            for verdict in missed.verdicts:
                hint = [] if blank else verdict.hint.splitlines()  # as on the page
                lines += [f"Expected: {verdict.rule} ({verdict.check})", *hint]
        lines += [f"Passed: {verdict.rule}" for verdict in part.passed]
        texts.append("\n".join(lines))
    cells = [new_raw_cell(text, id=f"feedback-{number}") for number, text in enumerate(texts)]
    return new_notebook(cells=cells)
