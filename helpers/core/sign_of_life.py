"""A line that counts the seconds while a slow cell is quiet, so that nobody takes it for dead."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

from .progress_line import progress_line

_FIRST, _EVERY = 1.5, 1.0  # seconds


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
