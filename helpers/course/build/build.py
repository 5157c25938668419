"""Build all files that follow from the sources, or say which of them are stale.

From each `solutions/NN_topic.py` come three: `labs/NN_topic.ipynb` (answers removed, outputs cleared),
`solutions/NN_topic.ipynb` (solved and executed), and the reference answers as a module. A solution is executed again
only when its code has changed, or its outputs are no good.
"""

import ast
from pathlib import Path

import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode

from ...core.files import ROOT
from .execution import execute
from .front_page import pages
from .notebooks import make_notebook, write
from .run_notebook import text_of
from .source import NO_SOURCES, BuildError, Source, checked_part, sources

REFERENCE = ROOT / "helpers" / "exercises" / "reference"
LARGEST = 2**20  # bytes of a committed notebook


def build(names: list[str], rerun: bool = False) -> None:
    """Write all files of the chosen sources; execute the solutions whose source has changed.

    With `rerun`, execute the others too: their outputs are of helpers that may have changed since.

    Raises:
        BuildError: a source is malformed, or a name matches none.
    """
    chosen = select(names)
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
        notebook = None if rerun else _with_kept_outputs(source)
        if notebook is not None:
            print(f"{source.name}: only its text has changed")
        else:
            print(f"{source.name}: running the solution", flush=True)
            try:
                notebook = execute(make_notebook(source, solved=True), source.path.parent)
            except BuildError as error:
                raise BuildError(f"{source.name}: {error}.") from None
        source.path.with_suffix(".ipynb").write_text(write(notebook), encoding="utf-8", newline="\n")
        problem = solution_problem(source)
        if problem:
            raise BuildError(f"solutions/{source.name}.ipynb {problem}.")


def problems(names: list[str]) -> list[str]:
    """List every built file that does not match its source; empty when all do.

    Raises:
        BuildError: a source is malformed, or a name matches none.
    """
    lines = []
    for source in select(names):
        for path, text in _plain_files(source).items():
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                lines.append(f"{path.relative_to(ROOT).as_posix()} does not match its source")
        problem = solution_problem(source)
        if problem:
            lines.append(f"solutions/{source.name}.ipynb {problem}")
    if not names:
        for path, text in pages().items():
            if text != path.read_text(encoding="utf-8"):
                page = path.relative_to(ROOT).as_posix()
                lines.append(f"{page}: its tables do not match the labs, the receipts or the rooms")
        known = {source.name for source in sources()}
        for folder in ("labs", "solutions"):
            strays = [path for path in sorted((ROOT / folder).glob("*.ipynb")) if path.stem not in known]
            lines += [f"{folder}/{path.name} has no source" for path in strays]
    return lines


def solution_problem(source: Source) -> str | None:
    """Say what is wrong with the executed solution of `source`; None if it is up to date."""
    path = source.path.with_suffix(".ipynb")
    if not path.exists():
        return "is missing"
    notebook = nbformat.read(path, as_version=4)
    if _without_outputs(notebook) != write(make_notebook(source, solved=True)):
        return "is older than its source"
    if path.stat().st_size > LARGEST:
        return f"is larger than {LARGEST:,} bytes"
    return _output_problem(notebook)


def _output_problem(notebook: NotebookNode) -> str | None:
    """Say what is wrong with the outputs of an executed solution; None if they are as they should be."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if any(cell.execution_count is None for cell in code):
        return "has cells that were not run"
    outputs = [output for cell in code for output in cell.outputs]
    if any(output.output_type == "error" or output.get("name") == "stderr" for output in outputs):
        return "shows an error or a warning"
    checks = [cell for cell in code if checked_part(cell.source)]
    if any("✗" in text_of(output) for cell in checks for output in cell.outputs):
        return "fails a check of its own"
    return None


def _with_kept_outputs(source: Source) -> NotebookNode | None:
    """Return the solution with the outputs that it has; None if they are no good, or code has changed since."""
    path = source.path.with_suffix(".ipynb")
    if not path.exists():
        return None
    notebook = make_notebook(source, solved=True)
    new, ran = (
        [cell for cell in each.cells if cell.cell_type == "code"]
        for each in (notebook, nbformat.read(path, as_version=4))
    )
    if [_without_comments(cell.source) for cell in new] != [_without_comments(cell.source) for cell in ran]:
        return None
    for cell, before in zip(new, ran, strict=True):
        cell.outputs, cell.execution_count = before.outputs, before.execution_count
    return None if _output_problem(notebook) else notebook


def _without_comments(code: str) -> str:
    """Return what two cells have in common if they do the same and only their comments or layout differ."""
    return ast.dump(ast.parse(TransformerManager().transform_cell(code)))  # magic commands become calls


def select(names: list[str]) -> list[Source]:
    """Return the sources whose names begin with one of `names` (all, when none is given).

    Raises:
        BuildError: there are no sources, or a name matches none.
    """
    known = sources()
    if not known:
        raise BuildError(NO_SOURCES)
    chosen = [source for source in known if not names or source.name.startswith(tuple(names))]
    for name in names:
        if not any(source.name.startswith(name) for source in known):
            raise BuildError(f"No source is called {name!r}. The sources are: {', '.join(s.name for s in known)}.")
    return chosen


def _plain_files(source: Source) -> dict[Path, str]:
    """Return the files that follow from the source alone, without running anything."""
    files = {ROOT / "labs" / f"{source.name}.ipynb": write(make_notebook(source, solved=False))}
    reference = source.reference()
    if reference is not None:
        files[REFERENCE / f"{source.exercise}.py"] = reference
    return files


def _without_outputs(notebook: NotebookNode) -> str:
    plain = nbformat.from_dict(notebook)
    for cell in plain.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return write(plain)
