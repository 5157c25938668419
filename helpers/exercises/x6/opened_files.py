"""What an answer opens in its own process: files that it writes elsewhere, and files that it leaves open."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_NOT_MEANT = ("/dev/", "/proc/")  # no files on a disk


def written_outside(folder: Path) -> Callable[[], list[str]]:
    """From now on, note which files outside of `folder` this process opens to write; return what tells them.

    What is told once is forgotten. The notes end with the process: Python has no way to take its hook away.
    """
    inside, noted = (str(folder), os.path.realpath(folder)), []

    def note(event: str, details: tuple[Any, ...]) -> None:
        if event != "open" or not isinstance(details[0], str | bytes) or not isinstance(details[2], int):
            return
        name = os.fsdecode(details[0])
        if not os.path.isabs(name):  # it may be relative to a directory that was opened, which the event does not tell
            return
        path = os.path.realpath(name)
        is_meant = not path.startswith(_NOT_MEANT) and "__pycache__" not in path
        if details[2] & _WRITES and is_meant and not path.startswith(inside):
            noted.append(path)

    def told() -> list[str]:
        seen = noted.copy()
        noted.clear()
        return seen

    sys.addaudithook(note)
    return told


def descriptors() -> int:
    """Return how many files this process has open; 0 where the system does not say."""
    try:
        return len(os.listdir("/dev/fd"))
    except OSError:
        return 0
