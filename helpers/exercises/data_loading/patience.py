"""How long a probe waits for an answer that has threads of its own.

Such an answer may hang, because its thread has died or waits forever. So the loop over it runs in a thread, too, and
is given up after a while.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

PATIENCE = 5.0  # seconds after which a loop hangs


def until(true: Callable[[], bool], seconds: float = 1.0) -> bool:
    """Wait until `true()`, for `seconds` at most; return whether it came to that."""
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.002)
    return true()


def ended(before: set[threading.Thread]) -> bool:
    """Return whether all threads that were not there `before` end within a second."""
    here = threading.current_thread()
    return until(lambda: set(threading.enumerate()) <= before | {here})


def patiently(loop: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """Run `loop` in a thread: what it returned, and what it raised. A loop that hangs raises TimeoutError."""
    outcome: list[tuple[Any, BaseException | None]] = []

    def run() -> None:
        try:
            outcome.append((loop(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return outcome[0] if outcome else (None, TimeoutError())


def watch(loop: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """Run `loop`, which fills in the evidence that it gets; return that, and whether the loop hangs.

    What it had filled in when it hung is returned, too. What else it raises is the answer's own error.
    """
    seen: dict[str, Any] = {}
    _, error = patiently(lambda: loop(seen))
    if error is not None and not isinstance(error, TimeoutError):
        raise error
    return {**seen, "hangs": error is not None}
