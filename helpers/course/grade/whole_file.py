"""Files that are never half written."""

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write `text` to `path` so that readers see the old file or the new one, never half of it.

    What UTF-8 cannot hold, such as a file name that was in another encoding, is written as an escape.
    """
    draft = path.with_name(path.name + ".part")
    draft.write_text(text, encoding="utf-8", errors="backslashreplace", newline="")
    os.replace(draft, path)
