"""What learners get instead of a solution, and what nbgrader needs to know about a cell."""

import re

from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

PLACEHOLDER = "# YOUR CODE HERE\nraise NotImplementedError()"  # nbgrader's words
# nbgrader knows solutions and allows them in answer cells only; guesses are this course's own.
_REGION = re.compile(r"^( *)### BEGIN (SOLUTION|GUESS)\n.*?^ *### END \2$", re.MULTILINE | re.DOTALL)


def clear_solution(cell: NotebookNode) -> str:
    """Return the learner's version of a cell: a placeholder for each solution, and nothing for a guess."""

    def stub(match: re.Match) -> str:
        if match[2] == "GUESS":
            return ""
        return "\n".join(match[1] + line for line in PLACEHOLDER.splitlines())

    return _REGION.sub(stub, cell.source).rstrip("\n")


def hidden_solution(cell: NotebookNode) -> NotebookNode:
    """Return a Markdown cell that hides the solution of a practice task behind a click."""
    code = re.sub(r"^ *### (BEGIN|END) SOLUTION\n?", "", cell.source, flags=re.MULTILINE).strip()
    text = f"<details><summary>Solution</summary>\n\n```python\n{code}\n```\n\n</details>"
    return new_markdown_cell(text, metadata={"name": f"{cell.metadata['name']}_solution"})


def nbgrader_metadata(cell: NotebookNode) -> dict | None:
    """Return nbgrader's metadata (schema 3) for answers and graded checks; None for other cells."""
    points = cell.metadata.get("points")
    answer = bool(cell.metadata.get("answer"))
    if not answer and points is None:
        return None
    return {
        "grade": points is not None,
        "grade_id": cell.id,
        "locked": not answer,
        "schema_version": 3,
        "solution": answer,
        "task": False,
        **({"points": points} if points is not None else {}),
    }
