"""One line that says what takes its time, where somebody waits for it."""

import os
import shutil
import sys

from .notebook import in_notebook

_shown = 0  # characters that stand in the line now


def progress_line(text: str) -> None:
    """Show `text` in place of the last one; "" takes it away.

    It goes to a terminal, or to a notebook that is open in a Jupyter server. In a pipe and in a notebook that is built
    it would be left over, so nothing is shown there.
    """
    global _shown
    if in_notebook():
        stream = sys.stdout if os.environ.get("JPY_SESSION_NAME") else None
    else:
        stream = sys.stderr if sys.stderr.isatty() else None
    if stream is None or not (text or _shown):
        return
    text = text[: shutil.get_terminal_size().columns - 1]
    print(f"\r{text.ljust(_shown)}" + ("" if text else "\r"), end="", file=stream, flush=True)
    _shown = len(text)
