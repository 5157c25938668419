"""Build the notebooks from their sources.

From each `solutions/NN_topic.py` come three things: `labs/NN_topic.ipynb` (answers removed, outputs cleared),
`solutions/NN_topic.ipynb` (solved and executed), and the reference answers as a module. Cell ids come from names or
contents, so that the same source always builds the same bytes; a solution is executed again only when its source
has changed.
"""

import hashlib
import re
import tomllib
from pathlib import Path

import nbformat
from nbclient.exceptions import CellExecutionError, CellTimeoutError
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from ...core.files import ROOT
from ...planner.planned import KEEP
from .front_page import pages
from .run_notebook import run_notebook
from .source import NO_SOURCES, Source, sources

PLACEHOLDER = "# YOUR CODE HERE\nraise NotImplementedError()"  # nbgrader's words
REFERENCE = ROOT / "helpers" / "exercises" / "reference"
LARGEST = 2**20  # bytes of a committed notebook
_KERNEL = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
# nbgrader knows solutions and allows them in answer cells only; guesses are this course's own.
_REGION = re.compile(r"^( *)### BEGIN (SOLUTION|GUESS)\n.*?^ *### END \2$", re.MULTILINE | re.DOTALL)


_REFERENCE = re.compile(r"\[\[(#?)(\w+)\]\]")  # to another lab, by its topic


class BuildError(Exception):
    """A source that cannot be built. The message says which cell and why."""


def clear_solution(cell: NotebookNode) -> str:
    """Return the learner's version of a cell: a placeholder for each solution, and nothing for a guess."""

    def stub(match: re.Match) -> str:
        if match[2] == "GUESS":
            return ""
        return "\n".join(match[1] + line for line in PLACEHOLDER.splitlines())

    return _REGION.sub(stub, cell.source).rstrip("\n")


def _identify(cells: list[NotebookNode], where: str) -> None:
    """Give every cell its stable id: its name, else a hash of its contents."""
    taken: set[str] = set()
    for cell in cells:
        cell.id = cell.metadata.get("name") or hashlib.sha256(cell.source.encode()).hexdigest()[:12]
        if cell.id in taken:
            raise BuildError(f"{where}: two cells are called {cell.id!r}, or have the same contents and no name.")
        taken.add(cell.id)


def _nbgrader(cell: NotebookNode) -> dict | None:
    """Return nbgrader's metadata (schema 3) for answers and graded checks."""
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


def _revealed(cell: NotebookNode) -> NotebookNode:
    """Return a Markdown cell that hides the solution of a practice task behind a click."""
    code = re.sub(r"^ *### (BEGIN|END) SOLUTION\n?", "", cell.source, flags=re.MULTILINE).strip()
    text = f"<details><summary>Solution</summary>\n\n```python\n{code}\n```\n\n</details>"
    return new_markdown_cell(text, metadata={"name": f"{cell.metadata['name']}_solution"})


def _repository() -> str:
    """Return the address that pyproject.toml holds."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]


def _badge(name: str) -> str:
    """Return the Colab badge of a learner's notebook."""
    repository = _repository().removeprefix("https://github.com/")
    link = f"https://colab.research.google.com/github/{repository}/blob/main/labs/{name}.ipynb"
    return f"[![Open In Colab](https://colab.research.google.com/assets/colab-badge.svg)]({link})"


def _install() -> NotebookNode:
    """Return the cell that makes a notebook work where it is opened alone. Its magic is no Python: sources lack it."""
    code = f"""\
# Opened alone, as on Colab? Then this installs the course beside the PyTorch that is there. Otherwise it does nothing.
import importlib.util

if importlib.util.find_spec("helpers") is None:
    %pip install --quiet "training-at-scale @ git+{_repository()}"
"""
    return new_code_cell(code.rstrip(), metadata={"name": "install"})


def _with_numbers(text: str, source: Source) -> str:
    """Replace each [[topic]] by "lab NN" and each [[#topic]] by "NN", both as links; [[Topic]] begins a sentence."""
    labs = {other.topic: other for other in sources()}

    def link(match: re.Match) -> str:
        lab = labs.get(match[2].lower())
        if lab is None:
            raise BuildError(f"{source.name}: there is no lab called {match[2]!r}.")
        word = "" if match[1] else "Lab " if match[2][0].isupper() else "lab "
        return f"[{word}{lab.number}]({lab.name}.ipynb)"

    return _REFERENCE.sub(link, text)


def make_notebook(source: Source, solved: bool) -> NotebookNode:
    """Return the notebook of `source` without outputs: the solved one, or the learner's."""
    cells: list[NotebookNode] = []
    hidden: list[NotebookNode] = []
    for cell in source.cells():
        if cell.cell_type not in ("code", "markdown"):
            raise BuildError(f"{source.name}: a {cell.cell_type} cell; only code and Markdown cells are built.")
        if cell.metadata.get("answer") and "### BEGIN SOLUTION" not in cell.source:
            raise BuildError(f"{source.name}: the answer cell {cell.metadata.get('name')!r} marks no solution.")
        if ("answer" in cell.metadata or "points" in cell.metadata) and "name" not in cell.metadata:
            raise BuildError(f"{source.name}: an answer or graded cell has no name.")
        if re.search(r"^### END SOLUTION\n+\S", cell.source, flags=re.MULTILINE):
            raise BuildError(f"{source.name}: {cell.metadata.get('name')!r}: its stub would raise before it defines.")
        if not cell.metadata.get("answer") and "### BEGIN SOLUTION" in cell.source:
            raise BuildError(f"{source.name}: a cell that is no answer marks a solution: {cell.source[:60]!r}")
        if cell.metadata.get("setup"):
            cells.append(_install())
        cells.append(cell)
        if hidden and cell.cell_type == "code":  # the check, which comes next, first
            cells.append(hidden.pop())
        if cell.metadata.get("reveal") and not solved:
            hidden.append(_revealed(cell))
    for cell in cells:
        if cell.cell_type == "markdown":
            cell.source = _with_numbers(cell.source, source)
    _identify(cells, source.name)
    title, _, rest = cells[0].source.partition("\n")
    if not source.graded:
        title = f"# {source.number} · {title.removeprefix('# ')}"
    cells[0].source = f"{title}\n\n{_badge(source.name)}\n{rest}"
    for cell in cells:
        nbgrader = _nbgrader(cell) if cell.cell_type == "code" else None
        if not solved:
            cell.source = clear_solution(cell)
        tags = ["setup"] if cell.metadata.get("setup") else list(cell.metadata.get("tags", []))
        cell.metadata = NotebookNode()
        if nbgrader:
            cell.metadata.nbgrader = nbgrader
        if tags:
            cell.metadata.tags = tags
    return new_notebook(cells=cells, metadata=_KERNEL)


def write(notebook: NotebookNode) -> str:
    """Return the text of the file, the same for the same notebook."""
    return nbformat.writes(notebook, version=4) + "\n"


def _coalesced(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Join pieces of the same stream, which a kernel sends in as many parts as it happens to."""
    joined: list[NotebookNode] = []
    for output in outputs:
        if joined and output.output_type == "stream" and output.get("name") == joined[-1].get("name"):
            joined[-1].text += output.text
        else:
            joined.append(output)
    return joined


def _clean(notebook: NotebookNode) -> NotebookNode:
    """Take out of executed outputs what differs from run to run without meaning anything."""
    notebook.metadata = NotebookNode(_KERNEL)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = _coalesced(cell.outputs)
        for output in cell.get("outputs", []):
            output.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)  # the plain figure stays
            for holder, key in ((output, "text"), (output.get("data", {}), "text/plain")):
                if key in holder:
                    holder[key] = re.sub(r"\b0x[0-9a-f]{6,}\b", "0x0", holder[key])
    return notebook


def execute(notebook: NotebookNode, folder: Path) -> NotebookNode:
    """Run all cells in `folder` and return the notebook with its outputs.

    Raises:
        BuildError: a cell failed or took more than ten minutes.
    """
    try:
        run_notebook(notebook, folder, {KEEP: "1"}, timeout=600)
    except CellExecutionError as error:
        raise BuildError(f"a cell failed with {error.ename}: {error.evalue}") from None
    except CellTimeoutError:
        raise BuildError("a cell took more than ten minutes") from None
    return _clean(notebook)


def _without_outputs(notebook: NotebookNode) -> str:
    plain = nbformat.from_dict(notebook)
    for cell in plain.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return write(plain)


def solution_problem(source: Source) -> str | None:
    """Say what is wrong with the executed solution of `source`; None if it is up to date."""
    path = source.path.with_suffix(".ipynb")
    if not path.exists():
        return "is missing"
    notebook = nbformat.read(path, as_version=4)
    if _without_outputs(notebook) != write(make_notebook(source, solved=True)):
        return "is older than its source"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if any(cell.execution_count is None for cell in code):
        return "has cells that were not run"
    outputs = [output for cell in code for output in cell.outputs]
    if any(output.output_type == "error" or output.get("name") == "stderr" for output in outputs):
        return "shows an error or a warning"
    checks = [cell for cell in code if cell.source.startswith("check(")]
    if any("✗" in output.get("text", "") for cell in checks for output in cell.outputs):
        return "fails a check of its own"
    if path.stat().st_size > LARGEST:
        return f"is larger than {LARGEST:,} bytes"
    return None


def _select(names: list[str]) -> list[Source]:
    """Return the sources whose names begin with one of `names` (all, when none is given)."""
    known = sources()
    if not known:
        raise BuildError(NO_SOURCES)
    chosen = [s for s in known if not names or any(s.name.startswith(name) for name in names)]
    for name in names:
        if not any(s.name.startswith(name) for s in known):
            raise BuildError(f"No source is called {name!r}. There are: {', '.join(s.name for s in known)}.")
    return chosen


def _plain_files(source: Source) -> dict[Path, str]:
    """Return the files that follow from the source alone, without running anything."""
    files = {ROOT / "labs" / f"{source.name}.ipynb": write(make_notebook(source, solved=False))}
    reference = source.reference()
    if reference is not None:
        files[REFERENCE / f"{source.exercise}.py"] = reference
    return files


def problems(names: list[str]) -> list[str]:
    """List every built file that does not match its source; empty when all do."""
    found = []
    for source in _select(names):
        for path, text in _plain_files(source).items():
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                found.append(f"{path.relative_to(ROOT).as_posix()} does not match its source")
        problem = solution_problem(source)
        if problem:
            found.append(f"solutions/{source.name}.ipynb {problem}")
    if not names:
        for path, text in pages().items():
            if text != path.read_text(encoding="utf-8"):
                where = path.relative_to(ROOT).as_posix()
                found.append(f"{where}: its tables do not match the labs, the receipts or the rooms")
        known = {s.name for s in sources()}
        for folder in ("labs", "solutions"):
            strays = [p for p in sorted((ROOT / folder).glob("*.ipynb")) if p.stem not in known]
            found += [f"{folder}/{p.name} has no source" for p in strays]
    return found


def build(names: list[str], rerun: bool = False) -> None:
    """Write all files of the chosen sources; execute the solutions whose source has changed.

    With `rerun`, execute the others too: their outputs are of helpers that may have changed since.

    Raises:
        BuildError: a source is malformed, or a name matches none.
    """
    chosen = _select(names)
    for source in chosen:  # the references first: executed solutions check themselves against them
        for path, text in _plain_files(source).items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8", newline="\n")
    for source in chosen:
        if solution_problem(source) is None and not rerun:
            print(f"{source.name}: up to date")
            continue
        print(f"{source.name}: running the solution", flush=True)
        try:
            notebook = execute(make_notebook(source, solved=True), source.path.parent)
        except BuildError as error:
            raise BuildError(f"{source.name}: {error}.") from None
        source.path.with_suffix(".ipynb").write_text(write(notebook), encoding="utf-8", newline="\n")
        problem = solution_problem(source)
        if problem:
            raise BuildError(f"solutions/{source.name}.ipynb {problem}.")
