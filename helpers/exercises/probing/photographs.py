"""Photographs of a folder while a function writes into it: what a kill at that moment would leave behind.

SIGKILL gives a process no time for anything: no `finally`, no flush. What stays is what the operating system has
already been given. So a copy of the folder, taken in the middle of a function, is what the next start would find had
the process been killed there. One is taken whenever the folder has changed.
"""

import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from .folder_watch import FolderWatch, Look, look_at
from .synced_files import SyncedFiles

MOST = 200  # photographs of one call


def _copier() -> Callable[[str, str], Any]:
    """Return a function that copies files, and a file that it has copied under another name as a link to that copy."""
    copies: dict[int, str] = {}  # by inode

    def copy(source: str, target: str) -> None:
        status = os.stat(source)
        if status.st_nlink > 1 and status.st_ino in copies:
            os.link(copies[status.st_ino], target)
        else:
            shutil.copy2(source, target)
            copies[status.st_ino] = target

    return copy


class Photographs:
    """Takes photographs of `folder` while a function runs.

    Args:
        folder: that the function writes to.
        album: a folder for the photographs.
        synced: knows which files are on the disk; inside its `with`.

    Attributes:
        before: the files that the folder had when the function began.
        taken: folders with a copy each, in order; the last one is the folder when the function was done.
        looks: for each photograph, the files that the folder had.
        on_disk: for each photograph, the paths of those files that were on the disk with all their bytes.
        lost: for each photograph, the names in the folder that a power failure may lose at that moment.
        unnamed: for each photograph, the paths of the files in folders below it whose names it may lose.
    """

    def __init__(self, folder: Path, album: Path, synced: SyncedFiles) -> None:
        self.folder, self.album, self.synced = folder, album, synced
        self.before: Look = {}
        self.taken: list[Path] = []
        self.looks: list[Look] = []
        self.on_disk: list[list[str]] = []
        self.lost: list[list[str]] = []
        self.unnamed: list[list[str]] = []

    def during(self, call: Callable[[], Any], lost: Collection[str] = ()) -> None:
        """Run `call`; take a photograph whenever the folder has changed, and one at the end.

        When it begins, the names `lost` in the folder are not on the disk yet; all others are.
        """
        self.before = look_at(self.folder)
        self.synced.all_names_are_on_disk()
        self.synced.forget(self.folder, lost)
        FolderWatch(self.folder, self._take).during(call)
        self._take(look_at(self.folder), MOST + 1)

    def _take(self, look: Look, most: int = MOST) -> None:
        if len(self.taken) < most:
            copy = self.album / str(len(self.taken))
            if self.folder.exists():
                shutil.copytree(self.folder, copy, copy_function=_copier())
            else:
                copy.mkdir(parents=True)
            self.taken.append(copy)
            self.looks.append(look)
            self.on_disk.append(self.synced.among(look))
            self.lost.append(self.synced.lost_names(self.folder, look))
            self.unnamed.append(self.synced.lost_inside(self.folder, look))

    def after_power_failure(self, number: int) -> Path:
        """Return a copy of a photograph without what a power failure may lose: all deletions stay, new names go."""
        copy = Path(shutil.copytree(self.taken[number], self.album / f"{number} without power"))
        for name in self.lost[number]:
            there = copy / name
            shutil.rmtree(there) if there.is_dir() else there.unlink(missing_ok=True)
        return copy
