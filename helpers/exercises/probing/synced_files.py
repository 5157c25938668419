"""Which files are on the disk with all their bytes, and which names: that `os.fsync` was called is no proof of it.

A file's bytes are on the disk after `fsync` of the file. Its name is an entry of its directory, and on the disk after
`fsync` of the directory. POSIX does not order the two, nor a rename and a later deletion.
"""

import os
import stat
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from .folder_watch import Look, look_at

_SYNCS = ("fsync", "fdatasync", "sync")


class SyncedFiles:
    """Notes, inside `with`, which files and names below `folder` are written through to the disk.

    A file counts as long as it has not changed since: bytes that Python still held back, or that were written later,
    are not on the disk. What there is at the beginning counts as written through.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._noted: dict[int, tuple[int, int]] = {}  # inode: (bytes, time of the last write)
        self._names: dict[int, set[str]] = {}  # inode of a directory: its names that are on the disk
        self._originals: list[tuple[Any, str, Callable[..., Any]]] = []

    def __enter__(self) -> "SyncedFiles":
        self.all_names_are_on_disk()
        for module in filter(None, (os, sys.modules.get("posix"))):  # what is imported from os is pickled as posix's
            for name in filter(lambda name: hasattr(module, name), _SYNCS):
                self._originals.append((module, name, getattr(module, name)))
        for module, name, _ in self._originals:
            setattr(module, name, self._note)
        return self

    def __exit__(self, *_: Any) -> None:
        for module, name, original in self._originals:
            setattr(module, name, original)
        self._originals.clear()

    def all_names_are_on_disk(self) -> None:
        """Take all names that there are now for written through."""
        for path, folders, files in os.walk(self._folder):
            self._names[os.stat(path).st_ino] = {*folders, *files}

    def forget(self, folder: Path, names: Collection[str]) -> None:
        """Take these names in `folder` for not yet written through."""
        if names:
            self._names[os.stat(folder).st_ino].difference_update(names)

    def _note(self, *fd: Any) -> None:
        """Stand in for `os.fsync` and its like. Nothing waits for a disk: that would take most of a check's time."""
        if fd:
            number = fd[0] if isinstance(fd[0], int) else fd[0].fileno()
            status = os.fstat(number)
            self._noted[status.st_ino] = (status.st_size, status.st_mtime_ns)
            if stat.S_ISDIR(status.st_mode):
                self._names[status.st_ino] = set(os.listdir(number))
        else:
            self._noted |= {file[2]: file[:2] for file in look_at(self._folder).values() if file}
            self.all_names_are_on_disk()

    def among(self, look: Look) -> list[str]:
        """Return the paths in `look` of the files that are on the disk as they are now."""
        return [path for path, file in look.items() if file and self._noted.get(file[2]) == file[:2]]

    def lost_names(self, folder: Path, look: Look) -> list[str]:
        """Return the names in `folder`, of which `look` is a look, that a power failure may lose now.

        Names in folders below it count as on the disk, and so do all names if `folder` itself is new.
        """
        try:
            names = self._names.get(os.stat(folder).st_ino)
        except OSError:  # it is not there
            return []
        return [path for path in look if os.sep not in path and names is not None and path not in names]

    def lost_inside(self, folder: Path, look: Look) -> list[str]:
        """Return the paths of files in folders below `folder` whose own names a power failure may lose now."""
        lost = []
        for path, file in look.items():
            inside, _, name = path.rpartition(os.sep)
            try:
                lost += [path] if file and inside and name not in self._known(folder / inside) else []
            except OSError:  # the folder is not there any more
                lost.append(path)
        return lost

    def _known(self, folder: Path) -> set[str]:
        return self._names.get(os.stat(folder).st_ino, set())
