"""What lies in a folder of checkpoints: entries called step-N, each a file or a directory."""

import re
from collections.abc import Iterator
from pathlib import Path

ENTRY = re.compile(r"step-0*(\d+)(?!\d)")


def entries_of(folder: Path) -> list[Path]:
    """Return what is published in `folder`: all entries whose name begins with "step-"."""
    return sorted(folder.glob("step-*")) if folder.is_dir() else []


def steps_of(entry: Path) -> int:
    """Return the number of steps in the name of `entry`; -1 where there is none."""
    match = ENTRY.match(entry.name)
    return int(match[1]) if match else -1


def files_in(path: Path) -> Iterator[Path]:
    """Yield `path` if it is a file, else all files below it."""
    if path.is_dir():
        for inner in sorted(path.rglob("*")):
            if inner.is_file():
                yield inner
    elif path.is_file():
        yield path


def bytes_in(path: Path) -> int:
    """Return the bytes of all files in `path`; a file with two names counts once."""
    stats = (file.stat() for file in files_in(path))
    return sum({(stat.st_dev, stat.st_ino): stat.st_size for stat in stats}.values())
