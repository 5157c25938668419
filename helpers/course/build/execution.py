"""Run a solved notebook, and take out of its outputs what differs from run to run without meaning anything."""

import re
from pathlib import Path

from nbclient.exceptions import CellExecutionError, CellTimeoutError
from nbformat import NotebookNode

from ...planner.planned import KEEP
from .notebooks import KERNEL
from .run_notebook import run_notebook
from .source import BuildError


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


def _clean(notebook: NotebookNode) -> NotebookNode:
    """Remove times, addresses and widgets without a kernel."""
    notebook.metadata = NotebookNode(KERNEL)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = _joined(cell.outputs)
        for output in cell.get("outputs", []):
            output.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)  # the plain figure stays
            for holder, key in ((output, "text"), (output.get("data", {}), "text/plain")):
                if key in holder:
                    holder[key] = re.sub(r"\b0x[0-9a-f]{6,}\b", "0x0", holder[key])
    return notebook


def _joined(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Join pieces of the same stream, which a kernel sends in as many parts as it happens to."""
    joined: list[NotebookNode] = []
    for output in outputs:
        if joined and output.output_type == "stream" and output.get("name") == joined[-1].get("name"):
            joined[-1].text += output.text
        else:
            joined.append(output)
    return joined
