"""Which files are on the disk with all their bytes: that `os.fsync` was called is no proof of it."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .folder_watch import Look, look_at

_SYNCS = ("fsync", "fdatasync", "sync")


class SyncedFiles:
    """Notes, inside `with`, which files below `folder` are written through to the disk.

    A file counts as long as it has not changed since: bytes that Python still held back, or that were written later,
    are not on the disk.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._noted: dict[int, tuple[int, int]] = {}  # inode: (bytes, time of the last write)
        self._originals: list[tuple[Any, str, Callable[..., Any]]] = []

    def __enter__(self) -> "SyncedFiles":
        for module in filter(None, (os, sys.modules.get("posix"))):  # what is imported from os is pickled as posix's
            for name in filter(lambda name: hasattr(module, name), _SYNCS):
                self._originals.append((module, name, getattr(module, name)))
        for module, name, original in self._originals:
            setattr(module, name, self._noting(original))
        return self

    def __exit__(self, *_: Any) -> None:
        for module, name, original in self._originals:
            setattr(module, name, original)
        self._originals.clear()

    def _noting(self, original: Callable[..., None]) -> Callable[..., None]:
        def sync(*fd: Any) -> None:
            original(*fd)
            if fd:
                status = os.fstat(fd[0] if isinstance(fd[0], int) else fd[0].fileno())
                self._noted[status.st_ino] = (status.st_size, status.st_mtime_ns)
            else:
                self._noted |= {file[2]: file[:2] for file in look_at(self._folder).values() if file}

        return sync

    def among(self, look: Look) -> list[str]:
        """Return the paths in `look` of the files that are on the disk as they are now."""
        return [path for path, file in look.items() if file and self._noted.get(file[2]) == file[:2]]
