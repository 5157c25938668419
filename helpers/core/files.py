"""Where the course lies on this machine, and files that are never half written."""

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
"""The folder of the package `helpers`."""
ROOT = PACKAGE.parent
"""The checkout; where only the package is installed, the folder that holds it."""


def atomic_write(path: Path, text: str) -> None:
    """Write `text` to `path` so that readers see the old file or the new one, never half of it.

    What UTF-8 cannot hold, such as a file name that was in another encoding, is written as an escape.
    """
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8", errors="backslashreplace", newline="")
    os.replace(draft, path)
