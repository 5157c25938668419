"""From a source to its two notebooks: the learner's and the solved one.

Cell ids come from names or contents, so that the same source always builds the same bytes.
"""

import hashlib
import re
import tomllib

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from ...core.files import ROOT
from .collapse import collapsed
from .references import with_numbers
from .source import BuildError, Source, checked_part, sources
from .stubs import clear_solution, hidden_solution, nbgrader_metadata

KERNEL = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def make_notebook(source: Source, solved: bool) -> NotebookNode:
    """Return the notebook of `source` without outputs: the solved one, or the learner's.

    Raises:
        BuildError: a cell is malformed; the message says which and why.
    """
    cells = _in_order(source, solved)
    for cell in cells:
        if cell.cell_type == "markdown":
            cell.source = with_numbers(cell.source, source)
    _identify(cells, source.name)
    title, _, rest = cells[0].source.partition("\n")
    if not source.graded:
        title = f"# {source.number} · {title.removeprefix('# ')}"
    cells[0].source = f"{title}\n\n{_badge(source.name)}\n{_with_codes(rest)}"
    cells.append(new_markdown_cell(_next(source), id="next", metadata={}))
    for cell in cells:
        metadata = _metadata(cell)
        if not solved:
            cell.source = clear_solution(cell)
        cell.metadata = metadata
    return new_notebook(cells=cells, metadata=KERNEL)


def write(notebook: NotebookNode) -> str:
    """Return the text of the file, the same for the same notebook."""
    return nbformat.writes(notebook, version=4) + "\n"


def _in_order(source: Source, solved: bool) -> list[NotebookNode]:
    """Return the cells of a notebook. The hidden solution of a practice task comes after its check and its hints."""
    cells: list[NotebookNode] = []
    solutions: list[NotebookNode] = []
    for cell in source.cells():
        _check(cell, source.name)
        if cell.metadata.get("setup") and not any(before.metadata.get("setup") for before in cells):
            cells.append(_install())
        tried = bool(cells) and (checked_part(cells[-1].source) or _is_hint(cells[-1]))
        if tried and not _is_hint(cell):
            cells += solutions
            solutions = []
        cells.append(cell)
        if cell.metadata.get("reveal") and not solved:
            solutions.append(hidden_solution(cell))
    return cells + solutions


def _is_hint(cell: NotebookNode) -> bool:
    return cell.source.startswith("hint(")


def _check(cell: NotebookNode, lab: str) -> None:
    """Raise BuildError for a cell that learners could not work with."""
    name = cell.metadata.get("name")
    if cell.cell_type not in ("code", "markdown"):
        raise BuildError(f"{lab}: a {cell.cell_type} cell; only code and Markdown cells are built.")
    if cell.metadata.get("answer") and "### BEGIN SOLUTION" not in cell.source:
        raise BuildError(f"{lab}: the answer cell {name!r} marks no solution.")
    if ("answer" in cell.metadata or "points" in cell.metadata) and name is None:
        raise BuildError(f"{lab}: an answer or graded cell has no name.")
    if re.search(r"^### END SOLUTION\n+\S", cell.source, flags=re.MULTILINE):
        raise BuildError(f"{lab}: {name!r}: code follows the solution, but the stub would raise before reaching it.")
    if not cell.metadata.get("answer") and "### BEGIN SOLUTION" in cell.source:
        raise BuildError(f"{lab}: a cell that is not an answer marks a solution: {cell.source[:60]!r}")


def _identify(cells: list[NotebookNode], lab: str) -> None:
    """Give every cell its stable id: its name, else a hash of its contents."""
    ids: set[str] = set()
    for cell in cells:
        cell.id = cell.metadata.get("name") or hashlib.sha256(cell.source.encode()).hexdigest()[:12]
        if cell.id in ids:
            raise BuildError(f"{lab}: two cells are called {cell.id!r}, or have the same contents and no name.")
        ids.add(cell.id)


def _metadata(cell: NotebookNode) -> NotebookNode:
    """Return what of a cell's metadata the notebook keeps: that of nbgrader, tags, and whether it is collapsed."""
    metadata = NotebookNode()
    nbgrader = nbgrader_metadata(cell) if cell.cell_type == "code" else None
    tags = ["setup"] if cell.metadata.get("setup") else list(cell.metadata.get("tags", []))
    if nbgrader:
        metadata.nbgrader = nbgrader
    if tags:
        metadata.tags = tags
    if collapsed(cell):
        metadata.jupyter = {"source_hidden": True}
    return metadata


def _with_codes(text: str) -> str:
    """Link the card's row of codes to the page that explains them."""
    return text.replace("\n| Syllabus |", "\n| [Codes](../docs/codes.md) |")


def _next(source: Source) -> str:
    """Return the last cell: a link to what comes next in the course."""
    order = sources()
    place = next((i for i, each in enumerate(order) if each.name == source.name), len(order))
    if place + 1 >= len(order):
        return "**Next:** you have reached the end of the course."
    after = order[place + 1]
    title = re.search(r"^# # (.+)$", after.path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1]
    return f"**Next:** [{title if after.graded else f'{after.number} · {title}'}]({after.name}.ipynb)"


def repository() -> str:
    """Return the address that pyproject.toml holds."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]


def colab(name: str) -> str:
    """Return the address at which Colab opens a learner's notebook."""
    address = repository().removeprefix("https://github.com/")
    return f"https://colab.research.google.com/github/{address}/blob/main/labs/{name}.ipynb"


def _badge(name: str) -> str:
    """Return the Colab badge of a learner's notebook."""
    return f"[![Open In Colab](https://colab.research.google.com/assets/colab-badge.svg)]({colab(name)})"


def _install() -> NotebookNode:
    """Return the cell that makes a notebook work where it is opened alone. Its magic is no Python: sources lack it."""
    code = f"""\
# If you opened this notebook on its own, as on Colab, this installs the course and keeps the PyTorch you have.
import importlib.util

if importlib.util.find_spec("helpers") is None:
    %pip install --quiet "training-at-scale @ git+{repository()}"
"""
    return new_code_cell(code.rstrip(), metadata={"name": "install"})
