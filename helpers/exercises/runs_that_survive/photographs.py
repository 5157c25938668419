"""Photographs of a folder while a function writes into it: what a kill at that moment would leave behind.

SIGKILL gives a process no time for anything: no `finally`, no flush. What stays is what the operating system has
already been given. So a copy of the folder, taken in the middle of a function, is what the next start would find had
the process been killed there. One is taken whenever the folder has changed: before each line of Python that runs, in
the function and in the libraries it calls, and after each built-in function.
"""

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MOST = 200  # photographs of one call


class Photographs:
    """Takes photographs of `folder` while a function runs.

    Attributes:
        taken: folders with a copy each, in order; the last one is the folder when the function was done.
        fsyncs: for each photograph, how many files had been written through to the disk by then.
    """

    def __init__(self, folder: Path, album: Path) -> None:
        self.folder, self.album = folder, album
        self.taken: list[Path] = []
        self.fsyncs: list[int] = []
        self._looked: Any = None
        self._synced = 0

    def during(self, call: Callable[[], Any]) -> None:
        """Run `call`; take a photograph whenever the folder has changed."""
        self._looked = _looks(self.folder)
        tracing, profiling = sys.gettrace(), sys.getprofile()
        with self._counting_fsyncs():
            sys.settrace(self._trace)
            sys.setprofile(self._profile)
            try:
                call()
            finally:
                sys.settrace(tracing)
                sys.setprofile(profiling)
        self._snap(always=True)

    def _trace(self, frame: Any, event: str, argument: Any) -> Any:
        if event == "line":
            self._snap()
        return self._trace

    def _profile(self, frame: Any, event: str, argument: Any) -> None:
        if event == "c_return":
            self._snap()

    def _snap(self, always: bool = False) -> None:
        tracing, profiling = sys.gettrace(), sys.getprofile()
        sys.settrace(None)
        sys.setprofile(None)
        try:
            looks = _looks(self.folder)
            if (looks != self._looked or always) and len(self.taken) < MOST:
                self._looked = looks
                copy = self.album / str(len(self.taken))
                shutil.copytree(self.folder, copy) if self.folder.exists() else copy.mkdir(parents=True)
                self.taken.append(copy)
                self.fsyncs.append(self._synced)
        finally:
            sys.setprofile(profiling)
            sys.settrace(tracing)

    @contextlib.contextmanager
    def _counting_fsyncs(self) -> Iterator[None]:
        names = [name for name in ("fsync", "fdatasync") if hasattr(os, name)]
        originals = {name: getattr(os, name) for name in names}

        def counting(original: Callable[[int], None]) -> Callable[[int], None]:
            def fsync(fd: int) -> None:
                original(fd)
                self._synced += 1

            return fsync

        for name, original in originals.items():
            setattr(os, name, counting(original))
        try:
            yield
        finally:
            for name, original in originals.items():
                setattr(os, name, original)


def _looks(folder: Path) -> tuple:
    """Return what tells one state of the folder from another: names, sizes and times of its files."""
    found = []
    for root, folders, files in os.walk(folder):
        found += [(root, name) for name in folders]
        for name in files:
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(os.path.join(root, name))
                found.append((root, name, status.st_size, status.st_mtime_ns, status.st_ino))
    return tuple(sorted(map(str, found)))
