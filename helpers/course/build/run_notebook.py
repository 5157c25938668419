"""A kernel that talks over files, not over the network's ports."""

import os
import tempfile
from pathlib import Path
from typing import Any

from nbclient import NotebookClient
from nbformat import NotebookNode
from traitlets.config import Config


def text_of(output: NotebookNode) -> str:
    """Return what an output of a cell says as text: what was printed, or what a front end without HTML shows."""
    return output.get("text", "") or output.get("data", {}).get("text/plain", "")


def run_notebook(
    notebook: NotebookNode, folder: Path, environment: dict[str, str] | None = None, **options: Any
) -> None:
    """Run `notebook` in `folder` and put the outputs into it.

    The kernel gets `environment` besides this process's; `options` are those of nbclient's NotebookClient.

    Two kernels that start at once can pick the same free port; they cannot meet in a folder of their own. Windows has
    no such sockets.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed, and errors are not allowed.
        nbclient.exceptions.CellTimeoutError: a cell took too long.
    """
    with tempfile.TemporaryDirectory() as sockets:
        over_files = {"transport": "ipc", "ip": os.path.join(sockets, "kernel")}
        config = Config({"KernelManager": over_files if os.name == "posix" else {}})
        place = {"metadata": {"path": str(folder)}}
        client = NotebookClient(notebook, kernel_name="python3", resources=place, config=config, **options)
        client.execute(env=os.environ | (environment or {}))
