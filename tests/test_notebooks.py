"""Learners' notebooks run from top to bottom: only answer cells that nobody filled in may stop."""

from helpers.course.source import ROOT, sources

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("source", sources(), ids=lambda s: s.name)
def test_untouched_notebook_runs_and_earns_nothing(source):
    notebook = nbformat.read(ROOT / "labs" / f"{source.name}.ipynb", as_version=4)
    client = NotebookClient(
        notebook, timeout=300, kernel_name="python3", allow_errors=True, resources={"metadata": {"path": ROOT / "labs"}}
    )
    client.execute()
    checks = 0
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            text = output.get("text", "")
            assert output.get("name") != "stderr", f"{cell.id}: {text}"
            if output.output_type == "error":
                answer = cell.metadata.get("nbgrader", {}).get("solution")
                assert answer, f"{cell.id} is no answer cell and stopped: {output.ename}: {output.evalue}"
                assert output.ename == "NotImplementedError", f"{cell.id}: {output.ename}: {output.evalue}"
        if cell.source.startswith("check("):
            checks += 1
            printed = "".join(output.get("text", "") for output in cell.outputs)  # may arrive in several pieces
            assert "not attempted yet" in printed
    assert checks >= 1
