"""How a script ends that does not come to its own end: no thread, process or `except:` of its keeps the report back."""

import functools
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from .patches import Patches
from .steps import EnoughStepsError

_SECONDS = 1.0  # in which a thread that is about to end may do so


class ScriptEnd:
    """Ends this process from wherever the script is; a process that the script has forked ends without a report.

    Args:
        report: prints the report of a script that has ended with an exit code, and returns this command's.
    """

    def __init__(self, report: Callable[[int], int]) -> None:
        self._report = report
        self._process = os.getpid()
        self._exit = os._exit
        self._before = set(threading.enumerate()), set(multiprocessing.active_children())
        self._opened: list[subprocess.Popen[Any]] = []
        self._once = threading.Lock()

    def install(self, patches: Patches) -> None:
        """Let `os._exit` and a thread that has taken the last step end the script."""
        patches.put(os, "_exit", self.at_once)
        patches.put(subprocess.Popen, "__init__", self._noting(subprocess.Popen.__init__))
        hook = threading.excepthook

        def ended(args: Any) -> None:
            if issubclass(args.exc_type, EnoughStepsError):
                self.at_once(0)  # the main thread may wait for what this one would have computed
            hook(args)

        patches.put(threading, "excepthook", ended)

    def at_once(self, code: int = 0) -> None:
        """Report, and end the process without asking the script."""
        if os.getpid() == self._process:
            self._once.acquire()  # another thread that ends the process waits here for the end
            code = self._report(code)
            self._leave(code)
        self._exit(code)

    def without_leftovers(self, code: int) -> int:
        """Return the exit code; end the process here if threads would keep it from ending.

        Processes that the script has started are ended: it would have told them later to end.
        """
        self._end_processes()
        threads = [thread for thread in threading.enumerate() if not thread.daemon and thread not in self._before[0]]
        for thread in threads:
            thread.join(_SECONDS / len(threads))
        if any(thread.is_alive() for thread in threads):
            self._leave(code)
        return code

    def _leave(self, code: int) -> None:
        self._end_processes()
        sys.stdout.flush()
        sys.stderr.flush()
        self._exit(code)

    def _noting(self, base: Callable[..., None]) -> Callable[..., None]:
        """Return a method that notes the process that it starts for the script."""

        @functools.wraps(base)
        def opened(process: Any, *args: Any, **options: Any) -> None:
            base(process, *args, **options)
            if os.getpid() == self._process:
                self._opened.append(process)

        return opened

    def _end_processes(self) -> None:
        """End the processes that the script has started; those with a session of their own are to outlive it."""
        for process in multiprocessing.active_children():
            if process not in self._before[1]:
                process.terminate()
        for opened in self._opened:
            if opened.poll() is None and _is_session_ours(opened.pid):
                opened.terminate()


def _is_session_ours(process: int) -> bool:
    try:
        return not hasattr(os, "getsid") or os.getsid(process) == os.getsid(0)
    except ProcessLookupError:
        return False
