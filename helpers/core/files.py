"""Where the course is on this machine, and files that are never half written."""

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
"""The folder of the package `helpers`."""
ROOT = PACKAGE.parent
"""The checkout; where only the package is installed, the folder that holds it."""


def default_folder() -> Path:
    """Return the folder of what is this user's own: `.progress` of the course, or of the home directory."""
    return (ROOT if os.access(ROOT, os.W_OK) else Path.home()) / ".progress"


def user_folder() -> Path | None:
    """Return `default_folder()`, or what `TAS_PROGRESS` names instead; None if that is empty or "off": keep nothing."""
    name = os.environ.get("TAS_PROGRESS")
    if name is None:
        return default_folder()
    return None if name.strip().lower() in ("", "off") else Path(name)


def atomic_write(path: Path, text: str) -> None:
    """Write `text` to `path` so that readers see the old file or the new one, never half of it.

    Text that UTF-8 cannot encode, such as a file name in another encoding, is written as escapes.
    """
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8", errors="backslashreplace", newline="")
    os.replace(draft, path)
