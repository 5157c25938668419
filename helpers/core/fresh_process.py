"""Start a process that has imported much and done nothing else.

On Linux it is forked from a server that has imported what is wanted, which takes milliseconds. Elsewhere it starts
afresh: on macOS the system's own libraries do not survive a fork, and Windows has none.
"""

import contextlib
import multiprocessing
import sys
import threading
import types
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from typing import Any

_FORKING = sys.platform == "linux"
CONTEXT = multiprocessing.get_context("forkserver" if _FORKING else "spawn")  # for pipes to such processes
_one_at_a_time = threading.Lock()


def start_process(target: Callable[..., None], args: tuple[Any, ...], preload: list[str], name: str) -> BaseProcess:
    """Start `target(*args)` in a new process.

    Args:
        target: a function of a module, not of the running script.
        preload: modules for the server to import. The first call in a process decides.
    """
    if _FORKING:
        CONTEXT.set_forkserver_preload(preload)
    process = CONTEXT.Process(target=target, args=args, name=name)
    with _one_at_a_time, _without_main():
        process.start()
    return process


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Hide the running script, which multiprocessing would run once more in each new process."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script
