"""python -m helpers page: the layout explorer as a page in the browser, served to this machine alone."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from ..core.files import ROOT
from ..planner import RecipeError

PORT = 8866
_CELL = "from helpers import layout_explorer\n\nlayout_explorer()"
_TITLE = "# Which layout?\n\nMove a control: every answer is a plan of all ranks, by running them on fake tensors."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of the command."""
    parser.add_argument("--port", type=int, default=PORT, metavar="N", help=f"of 127.0.0.1 (default {PORT})")
    parser.add_argument("--no-browser", action="store_true", help="only serve the page")


def run(args: argparse.Namespace) -> int:
    """Serve the page until it is interrupted; return the exit status.

    Raises:
        RecipeError: no such port.
        ModuleNotFoundError: Voila is not installed.
    """
    if not 1024 <= args.port <= 65535:
        raise RecipeError(f"--port is {args.port}; it must lie between 1024 and 65535.")
    if find_spec("voila") is None:
        raise ModuleNotFoundError("voila", name="voila")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "planner.ipynb"
        page.write_text(json.dumps(notebook()), encoding="utf-8")
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        try:
            return subprocess.call(command(page, args), env=os.environ | {"PYTHONPATH": path})
        except KeyboardInterrupt:
            return 0


def command(page: Path, args: argparse.Namespace) -> list[str]:
    """Return the command that serves a notebook as a page; nothing but this machine can reach it."""
    options = ["--Voila.ip=127.0.0.1", f"--port={args.port}", "--strip_sources=True", "--show_tracebacks=True"]
    return [sys.executable, "-m", "voila", str(page), *options, *(["--no-browser"] if args.no_browser else [])]


def notebook() -> dict:
    """Return the page as a notebook: a heading, and a cell with the explorer."""
    empty = {"metadata": {}, "outputs": [], "execution_count": None}
    code = {"cell_type": "code", "id": "explorer", "source": _CELL, **empty}
    title = {"cell_type": "markdown", "id": "title", "metadata": {}, "source": _TITLE}
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": [title, code], "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
