"""Start a process that has imported its modules and done nothing else.

On Linux it is forked from a server that has imported them already, which takes milliseconds. Elsewhere it is spawned:
on macOS the system's own libraries do not survive a fork, and Windows has none.
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
_start_lock = threading.Lock()


def start_process(target: Callable[..., None], args: tuple[Any, ...], preload: list[str], name: str) -> BaseProcess:
    """Start `target(*args)` in a new process.

    Args:
        target: a function in a module, not in the running script.
        preload: modules for the server to import. The first call in a process decides.
    """
    if _FORKING:
        CONTEXT.set_forkserver_preload(preload)
    process = CONTEXT.Process(target=target, args=args, name=name)
    with _start_lock, _without_main():
        process.start()
    return process


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Hide the running script, which multiprocessing would run again in each new process."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script
