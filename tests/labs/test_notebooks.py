"""Learners' notebooks run from top to bottom: only answer cells that nobody filled in may stop.

All cells of every lab take long: one lab runs each day, and all under `make test-all`. Of the graded exercises, which
are short, two do. What checks say of untouched answers is asked of all parts in `test_untouched.py`.
"""

from helpers.core.files import ROOT
from helpers.course.build.run_notebook import run_notebook, text_of
from helpers.course.build.source import checked_part, sources

import nbformat
import pytest

from ..sampling import sample

LABS = [source for source in sources() if not source.graded]
GRADED = [source for source in sources() if source.graded]
CHOSEN = sample(GRADED, one_in=3) + sample(LABS, one_in=len(LABS))
pytestmark = pytest.mark.slow


def is_answer(cell):
    return cell.metadata.get("nbgrader", {}).get("solution", False)


def is_check(cell):
    return cell.cell_type == "code" and checked_part(cell.source) is not None


@pytest.mark.parametrize("source", CHOSEN, ids=lambda s: s.name)
def test_untouched_notebook_runs_and_earns_nothing(source):
    notebook = nbformat.read(ROOT / "labs" / f"{source.name}.ipynb", as_version=4)
    run_notebook(notebook, ROOT / "labs", timeout=300, allow_errors=True)
    checks = 0
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            text = output.get("text", "")
            assert output.get("name") != "stderr", f"{cell.id}: {text}"
            if output.output_type == "error":
                assert is_answer(cell), f"{cell.id} is no answer cell and stopped: {output.ename}: {output.evalue}"
                assert output.ename == "NotImplementedError", f"{cell.id}: {output.ename}: {output.evalue}"
        if is_check(cell):
            checks += 1
            printed = "".join(map(text_of, cell.outputs))  # may arrive in several pieces
            assert "not attempted yet" in printed
    assert checks >= 1 or not source.reference(), "a lab with answer cells checks them"
