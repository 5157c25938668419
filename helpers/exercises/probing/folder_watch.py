"""Follow what a function does to a folder, change by change.

What a kill leaves on the disk is what the operating system has been given by then, so the moments at which a kill
leaves something new are those at which the folder has changed. Python announces each call that creates, renames or
deletes files, whichever library makes it (`sys.addaudithook`), and tells when a built-in function returns
(`sys.setprofile`): the folder is looked at before each of the former and after each of the latter.
"""

import builtins
import functools
import io
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

Look = dict[str, tuple[int, int, int] | None]
_CALLS = {"open", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.truncate"}
_IN_MEMORY = (str, bytes, bytearray, memoryview, list, tuple, dict, set, int, float, type, io.BytesIO, io.StringIO)
_watches: list["FolderWatch"] = []  # of the functions that run now


def look_at(folder: str | Path) -> Look:
    """Return what tells one state of `folder` from another: of each file, by its path, (bytes, time, inode).

    Folders in it have None.
    """
    found: Look = {}
    _add(found, str(folder), "")
    return found


def _add(found: Look, folder: str, inside: str) -> None:
    try:
        entries = list(os.scandir(folder))
    except OSError:  # it is not there
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            found[inside + entry.name] = None
            _add(found, entry.path, f"{inside}{entry.name}{os.sep}")
        else:
            try:
                status = os.stat(entry.path)
            except OSError:  # a link that leads nowhere, or gone by now
                continue
            found[inside + entry.name] = (status.st_size, status.st_mtime_ns, status.st_ino)


class FolderWatch:
    """Calls `changed` whenever `folder` has changed while a function runs, with the threads that it starts.

    Args:
        folder: that the function writes to; it may not exist yet.
        changed: is called with what `look_at` has found. Meanwhile threads of the function wait wherever they are, so
            it must want no lock that they may hold.
    """

    def __init__(self, folder: str | Path, changed: Callable[[Look], Any]) -> None:
        self._folder, self._changed = str(folder), changed
        self._last: Look = {}
        self._lock = threading.RLock()
        self._looking = 0  # the thread that looks; all others wait for it, so that none misses a change of its own

    def during(self, call: Callable[[], Any]) -> None:
        """Run `call`, and watch the folder until it returns."""
        _add_hook()
        self._last = look_at(self._folder)
        profiling = sys.getprofile()
        _watches.append(self)
        threading.setprofile(self._returned)
        sys.setprofile(self._returned)
        try:
            call()
        finally:
            sys.setprofile(profiling)
            threading.setprofile(None)
            _watches.remove(self)

    def _returned(self, frame: Any, event: str, function: Any) -> None:
        if event == "c_return" and self._looking != threading.get_ident():
            owner = getattr(function, "__self__", None)
            if owner is not builtins and not isinstance(owner, _IN_MEMORY):
                self.look()

    def look(self) -> None:
        """Look at the folder; `changed` is called if it is another one than before."""
        with self._lock:
            if self._looking:  # `changed` opens files, too
                return
            self._looking = threading.get_ident()
            try:
                look = look_at(self._folder)
                if look != self._last:
                    self._last = look
                    self._changed(look)
            finally:
                self._looking = 0


@functools.cache
def _add_hook() -> None:
    sys.addaudithook(_announced)  # cannot be taken away again; with no watch it does nothing


def _announced(event: str, arguments: tuple[Any, ...]) -> None:
    if _watches and event in _CALLS:
        for watch in _watches[:]:
            watch.look()
