"""Which files Python opens to write to while a piece of code runs."""

import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from typing import Any

_lists: list[list[str]] = []  # of the contexts that are open now
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT


@contextlib.contextmanager
def files_opened() -> Iterator[list[str]]:
    """Yield a list that fills with the names of files opened for writing, Python's own caches left out.

    Python's audit events tell (docs.python.org/3/library/audit_events.html), so what a library in C opens by itself, as
    `torch.save` does, is seen only where that goes through Python: `torch.save` is watched on top.
    """
    import torch

    _add_hook()
    found: list[str] = []
    save = torch.save

    @functools.wraps(save)
    def noted(obj: Any, f: Any, *args: Any, **options: Any) -> None:
        if isinstance(f, str | os.PathLike):
            found.append(os.fspath(f))
        save(obj, f, *args, **options)

    _lists.append(found)
    torch.save = noted
    try:
        yield found
    finally:
        torch.save = save
        _lists.remove(found)


@functools.cache
def _add_hook() -> None:
    sys.addaudithook(_note)  # cannot be taken away again; with no list it does nothing


def _note(event: str, args: tuple[Any, ...]) -> None:
    if not _lists or event not in ("open", "sqlite3.connect"):
        return
    name = str(args[0])
    if event == "open":
        mode, flags = args[1] or "", args[2] or 0
        if not (set(mode) & set("wax+") or flags & _WRITES) or isinstance(args[0], int):
            return
    if "__pycache__" not in name and name != os.devnull:
        for found in _lists:
            found.append(name)
