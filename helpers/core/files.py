"""Where the course is on this machine, and files that are never half written."""

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
"""The folder of the package `helpers`."""
ROOT = PACKAGE.parent
"""The checkout; where only the package is installed, the folder that holds it."""


def atomic_write(path: Path, text: str) -> None:
    """Write `text` to `path` so that readers see the old file or the new one, never half of it.

    Text that UTF-8 cannot encode, such as a file name in another encoding, is written as escapes.
    """
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8", errors="backslashreplace", newline="")
    os.replace(draft, path)
