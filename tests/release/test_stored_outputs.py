"""What the solved notebooks show is what a run without a mishap shows: no time limit passed, nothing left out."""

import re

from helpers.core.files import ROOT
from helpers.course.build.run_notebook import text_of

import nbformat
import pytest

MISHAPS = re.compile(r"ha(s|ve) not come back within|too busy|Traceback|appears? when|appears once|[Nn]ot written yet")
# cells whose subject is a run that does not come back, and one on a machine that is not quiet
ON_PURPOSE = {
    ("11b_when_ranks_go_wrong", "rank0"),
    ("11b_when_ranks_go_wrong", "hang"),
    ("15_context_parallel", "shift_naive"),
    ("07_where_the_time_goes", "summary"),  # its machine's rates lay apart in every run: a figure, and no verdict
}


def mishaps(notebook: nbformat.NotebookNode) -> dict[str, str]:
    """Return, by the cell's name, the line of its output that tells of a mishap."""
    found = {}
    for cell in notebook.cells:
        text = "\n".join(text_of(output) for output in cell.get("outputs", []))
        if match := re.search(rf".*({MISHAPS.pattern}).*", text):
            found[cell.id] = match[0]
    return found


@pytest.mark.parametrize("path", sorted((ROOT / "solutions").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_stored_run_had_no_mishap(path):
    found = mishaps(nbformat.read(path, as_version=4))
    assert {cell for name, cell in ON_PURPOSE if name == path.stem} >= set(found), found


def test_mishaps_are_seen():
    read = nbformat.v4.new_code_cell(
        outputs=[nbformat.v4.new_output("stream", text="a\nrank 0 has not come back within 60 s\n")]
    )
    fine = nbformat.v4.new_code_cell(outputs=[nbformat.v4.new_output("stream", text="all came back within 60 s\n")])
    assert list(mishaps(nbformat.v4.new_notebook(cells=[read, fine]))) == [read.id]
