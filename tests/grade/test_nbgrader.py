"""The built notebooks in nbgrader, which lives in an environment of its own: `make graders`."""

import os
import subprocess
from pathlib import Path

from helpers.course.build.notebooks import make_notebook, write
from helpers.course.build.source import sources

import nbformat
import pytest

from .graders import PARTS, Outcome, kernel_for
from .versus import HOSTILE, cases, wrong

PYTHON = os.environ.get("NBGRADER_PYTHON")
GRADED = [source for source in sources() if source.graded]
CLEAR = """
import sys, nbformat
from nbgrader.preprocessors import CheckCellMetadata, ClearSolutions, LockCells
notebook = nbformat.read(sys.argv[1], 4)
for preprocessor in (LockCells(), ClearSolutions(), CheckCellMetadata()):
    notebook, _ = preprocessor.preprocess(notebook, {})
nbformat.write(notebook, sys.argv[1])
"""
needs_nbgrader = pytest.mark.skipif(not PYTHON, reason="needs nbgrader: make graders")


def test_the_hand_ins_that_both_graders_get_are_right_wrong_and_hostile():
    students = cases()
    assert {name for name, case in students.items() if case.earned == PARTS.keys()} == {"right"}
    assert {name for name in HOSTILE if students[name].earned} == {"swaps_a_function_s_body"}
    outcome = Outcome({name: set(case.earned) for name, case in students.items()}, 1.0, 1.0)
    assert not wrong(students, outcome)
    outcome.given["untouched"] = {"step"}
    del outcome.given["dies"]
    assert wrong(students, outcome) == ["untouched", "dies"]


@needs_nbgrader
@pytest.mark.parametrize("source", GRADED, ids=lambda source: source.name)
def test_our_build_leaves_learners_what_nbgrader_would(source, tmp_path):
    """Learners' answer cells define the same stubs, and every cell keeps the metadata that nbgrader gives it."""
    path = tmp_path / "notebook.ipynb"
    path.write_text(write(make_notebook(source, solved=True)), encoding="utf-8")
    subprocess.run([PYTHON, "-c", CLEAR, str(path)], check=True, capture_output=True, text=True)
    theirs = {cell.id: cell for cell in nbformat.read(path, 4).cells}
    ours = {cell.id: cell for cell in make_notebook(source, solved=False).cells}
    for name, cell in theirs.items():
        marks = cell.metadata.get("nbgrader")
        assert (ours[name].metadata.get("nbgrader") or {}) == (marks or {}), name
        if marks and marks["solution"]:
            without = [line.split("#")[0].rstrip() for line in cell.source.replace("# YOUR CODE HERE", "").splitlines()]
            mine = [line.split("#")[0].rstrip() for line in ours[name].source.splitlines()]
            assert [line for line in mine if line] == [line for line in without if line], name


@pytest.fixture
def validate(tmp_path):
    """Run `nbgrader validate` with this environment's Python as the kernel."""
    environment = kernel_for(tmp_path)

    def run(path):
        command = [str(Path(PYTHON).with_name("nbgrader")), "validate", "--ExecutePreprocessor.timeout=600", str(path)]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        return done.stdout + done.stderr

    return run


@needs_nbgrader
@pytest.mark.slow
@pytest.mark.parametrize("source", GRADED, ids=lambda source: source.name)
def test_validate_fails_on_the_untouched_and_passes_on_the_solved(validate, tmp_path, source):
    verdicts = {}
    for solved in (False, True):
        path = tmp_path / f"{source.name}.ipynb"
        path.write_text(write(make_notebook(source, solved=solved)), encoding="utf-8")
        verdicts[solved] = validate(path)
    assert "failed" in verdicts[False]
    assert "Success! Your notebook passes all the tests." in verdicts[True]
