"""What a program does to a folder, call by call, and its end before any one of them.

Python announces each call that changes files (`sys.addaudithook`), whichever library makes it. Between two of these
calls lies a *moment*: what the disk holds then is what a kill leaves. A kill in the middle of a write needs the kernel:
a process whose files may not grow beyond so many bytes gets a signal at exactly this byte.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

try:
    import resource
except ImportError:  # Windows
    resource = None

_CHANGES = {"os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.truncate"}
_FLUSHES = ("fsync", "fdatasync", "sync")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CAN_STOP_WRITES = resource is not None and hasattr(signal, "SIGXFSZ")


def die() -> None:
    """End this process as a power switch would: nothing is caught, nothing is cleaned up."""
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
    time.sleep(60)  # not reached


def die_at_byte(size: int) -> None:
    """Let the kernel end this process when a file of it grows beyond `size` bytes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it, and gets an error instead
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


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


class FolderWatch:
    """Follows what this process does to `folder` inside `with`; the process is to end soon, since hooks stay.

    It can end the process before the call number `die_before`, or in a write after it, at the byte `die_at` of a file.

    Attributes:
        moments: the calls that changed something, in order.
        most: the largest number of bytes that the folder held at a moment.
        published: for each entry whose name begins with "step-", whether all its bytes had been flushed to the disk
            when it got this name.
    """

    def __init__(self, folder: Path, die_before: int | None = None, die_at: int = 0) -> None:
        self.moments: list[str] = []
        self.most = 0
        self.published: dict[str, bool] = {}
        self._folder, self._die_before, self._die_at = Path(os.path.abspath(folder)), die_before, die_at
        self._flushed: dict[tuple[int, int], tuple[int, int]] = {}  # (device, inode): (bytes, time of the last write)
        self._on = False
        for name in _FLUSHES:
            self._wrap(name)
        sys.addaudithook(self._hear)

    def __enter__(self) -> "FolderWatch":
        self._before = self._entries()
        self._on = True
        return self

    def __exit__(self, *_: Any) -> None:
        self._on = False
        self.most = max(self.most, bytes_in(self._folder))
        for name in self._entries() - self._before - self.published.keys():  # written under the name that it has
            self.published[name] = self._is_flushed(self._folder / name)

    def _entries(self) -> set[str]:
        return {entry.name for entry in self._folder.glob("step-*")}

    def _wrap(self, name: str) -> None:
        flush: Callable[..., Any] | None = getattr(os, name, None)
        if flush is None:
            return

        def flushing(*args: Any) -> Any:
            if self._on:
                self._moment(f"os.{name}")
            result = flush(*args)
            if args:
                fd = args[0] if isinstance(args[0], int) else args[0].fileno()
                self._note(os.fstat(fd))
            else:
                for file in files_in(self._folder):
                    self._note(file.stat())
            return result

        setattr(os, name, flushing)
        if hasattr(sys.modules.get("posix"), name):
            setattr(sys.modules["posix"], name, flushing)

    def _note(self, stat: os.stat_result) -> None:
        self._flushed[stat.st_dev, stat.st_ino] = (stat.st_size, stat.st_mtime_ns)

    def _is_flushed(self, path: Path) -> bool:
        stats = [file.stat() for file in files_in(path)]
        return bool(stats) and all(self._flushed.get((s.st_dev, s.st_ino)) == (s.st_size, s.st_mtime_ns) for s in stats)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        """Take note of a call that is about to be made."""
        if not self._on or (event not in _CHANGES and event != "open") or not self._ours(event, args):
            return
        self._on = False  # what follows here makes such calls, too
        try:
            self._moment(event)
            if event in ("os.rename", "os.link"):
                source, target = (Path(os.path.abspath(os.fsdecode(path))) for path in args[:2])
                if target.parent == self._folder and target.name.startswith("step-"):
                    self.published[target.name] = self._is_flushed(source)
        finally:
            self._on = True

    def _moment(self, event: str) -> None:
        self.most = max(self.most, bytes_in(self._folder))
        if len(self.moments) == self._die_before:
            die_at_byte(self._die_at) if self._die_at else die()
        self.moments.append(event)

    def _ours(self, event: str, args: tuple[Any, ...]) -> bool:
        """Whether a call is about the folder; one relative to an open directory is taken to be."""
        if event == "open" and (isinstance(args[0], int | None) or not (args[2] or 0) & _WRITING):
            return False
        paths = args[:2] if event in ("os.rename", "os.link", "os.symlink") else args[:1]
        if event != "open" and any(isinstance(fd, int) and fd >= 0 for fd in args[len(paths) :] if event != "os.mkdir"):
            return True
        return any(self._folder in (p := Path(os.path.abspath(os.fsdecode(path)))).parents or p == self._folder
                   for path in paths if isinstance(path, str | bytes | os.PathLike))  # fmt: skip
