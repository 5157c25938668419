"""What is otherwise where a checkpoint is loaded: hashes of strings, and the order in which a directory lists names."""

import builtins
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_scan, _list, _hash = os.scandir, os.listdir, hash


class _Scanned:
    """What `os.scandir` returns, the last entry first."""

    def __init__(self, *path: Any) -> None:
        with _scan(*path) as entries:
            self._entries = iter(list(entries)[::-1])

    def __iter__(self) -> Iterator[os.DirEntry]:
        return self._entries

    def __next__(self) -> os.DirEntry:
        return next(self._entries)

    def __enter__(self) -> "_Scanned":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing: all entries have been read."""


def _other_hash(value: Any) -> int:
    """Stand in for `hash`. Each start of Python has its own hashes of strings, which a forked process inherits."""
    return ~_hash(value) if isinstance(value, str | bytes) else _hash(value)


@contextmanager
def elsewhere() -> Iterator[None]:
    """Run the block as a process that Python has started anew, with a disk to which the folder was copied."""
    builtins.hash, os.scandir, os.listdir = _other_hash, _Scanned, lambda *path: _list(*path)[::-1]
    try:
        yield
    finally:
        builtins.hash, os.scandir, os.listdir = _hash, _scan, _list
