"""Wait until something has come into a folder, and has come whole."""

import time
from pathlib import Path

EVERY = 2.0  # seconds between two looks

State = dict[str, tuple[int, int]]  # size and time of the last change, by path


def state_of(folder: Path) -> State:
    """Return what `folder` holds, to be compared with what it holds later."""
    state = {}
    for path in folder.rglob("*"):
        try:
            found = path.lstat()
        except OSError:  # it has just been removed
            continue
        state[str(path)] = found.st_size, found.st_mtime_ns
    return state


def wait_for_change(folder: Path, seen: State) -> State:
    """Return the state of `folder` when it is another than `seen` and has stood still from one look to the next.

    A file that is being copied grows, so it is not read before it is whole.
    """
    last = seen
    while True:
        time.sleep(EVERY)
        now = state_of(folder)
        if now == last != seen:
            return now
        last = now
