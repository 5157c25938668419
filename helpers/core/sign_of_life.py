"""Signs of life while something slow is quiet: a line that counts the seconds, or lines in a log."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

from .notebook import in_notebook
from .progress_line import progress_line

_FIRST, _EVERY = 1.5, 1.0  # seconds
_EVERY_LINE = 30.0  # seconds between two lines in a log


@contextmanager
def sign_of_life(what: str) -> Iterator[None]:
    """Show "what … running for N s" in one line, counting, until the block is left; then take the line away.

    A block that takes less than a second and a half shows nothing. The block itself should print nothing: print its
    results below it. Where `progress_line` is silent (in a pipe, in a notebook that is built), so is this.
    """
    done, start = Event(), time.monotonic()

    def count() -> None:
        pause = _FIRST
        while not done.wait(pause):
            progress_line(f"{what} … running for {time.monotonic() - start:.0f} s")
            pause = _EVERY

    counter = Thread(target=count, name="sign of life", daemon=True)
    counter.start()
    try:
        yield
    finally:
        done.set()
        counter.join()
        progress_line("")


@contextmanager
def lines_in_a_log(stage: Callable[[], str]) -> Iterator[None]:
    """Print `stage()` to stderr every 30 seconds until the block is left, for commands whose bar needs a terminal.

    Where stderr is a terminal, or in a notebook, nothing is printed.
    """
    if in_notebook() or sys.stderr.isatty():
        yield
        return
    done, start, log = Event(), time.monotonic(), sys.stderr

    def write() -> None:
        while not done.wait(_EVERY_LINE):
            print(f"running for {time.monotonic() - start:.0f} s: {stage()}", file=log, flush=True)

    writer = Thread(target=write, name="lines in a log", daemon=True)
    writer.start()
    try:
        yield
    finally:
        done.set()
        writer.join()
