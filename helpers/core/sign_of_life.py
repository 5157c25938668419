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
    start = time.monotonic()
    try:
        with _again_and_again(
            lambda: progress_line(f"{what} … running for {time.monotonic() - start:.0f} s"), _FIRST, _EVERY
        ):
            yield
    finally:
        progress_line("")


@contextmanager
def lines_in_a_log(stage: Callable[[], str]) -> Iterator[None]:
    """Print `stage()` to stderr every 30 seconds until the block is left, for commands whose bar needs a terminal.

    Where stderr is a terminal, or in a notebook, nothing is printed.
    """
    if in_notebook() or sys.stderr.isatty():
        yield
        return
    start, log = time.monotonic(), sys.stderr

    def write() -> None:
        print(f"running for {time.monotonic() - start:.0f} s: {stage()}", file=log, flush=True)

    with _again_and_again(write, _EVERY_LINE, _EVERY_LINE):
        yield


@contextmanager
def _again_and_again(say: Callable[[], None], first: float, every: float) -> Iterator[None]:
    """Call `say` after `first` seconds and then each `every` seconds, in a thread, until the block is left."""
    done = Event()

    def run() -> None:
        pause = first
        while not done.wait(pause):
            say()
            pause = every

    thread = Thread(target=run, name="sign of life", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
