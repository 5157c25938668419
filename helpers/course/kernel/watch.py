"""Record what an answer asks of Python and the system: files, processes, frames.

Python raises *audit events* for such things, and a hook that listens to them cannot be removed. Most events come from
libraries at work. Only those that an answer's own lines cause are recorded.
"""

import _thread
import contextlib
import os
import sys
import sysconfig
import threading
from collections.abc import Iterator
from importlib import _bootstrap
from types import CodeType, FrameType
from typing import Any

ANSWER = "<answer "  # how the file names of answer cells begin
_TELLING = {
    "open": "opens a file",
    "subprocess.Popen": "starts a process",
    "sys._getframe": "looks at frames",
    "sys._current_frames": "looks at frames",
    "sys.settrace": "traces",
    "sys.setprofile": "traces",
    "sys.addaudithook": "adds an audit hook",
    "code.__new__": "makes code objects",
    "object.__setattr__": "sets one of Python's internal attributes",
    "object.__getattr__": "reads one of Python's internal attributes",
}
_FAMILIES = {
    "_thread.": "starts a thread",
    "os.": "calls the operating system",
    "socket.": "opens a socket",
    "ctypes.": "calls C",
    "gc.": "searches all objects",
    "shutil.": "copies or removes files",
    "signal.": "sends signals",
    "pty.": "asks the system",
    "fcntl.": "asks the system",
    "mmap.": "maps memory",
}
_LIBRARIES = tuple({sysconfig.get_path(scheme) + os.sep for scheme in ("stdlib", "platstdlib", "purelib", "platlib")})
_IMPORTS: CodeType = _bootstrap._find_and_load.__code__  # type: ignore[attr-defined]  # what is at work in any import
_BODY = ("__code__", "__defaults__", "__kwdefaults__")  # what the guard reads of a function
_THREADED = ("tqdm", "IPython", "_inductor", "_dynamo")  # libraries whose threads run no code of an answer

if sys.version_info < (3, 12):  # where Python itself does not raise this event

    def _audited(*args: Any, start: Any = _thread.start_new_thread) -> int:
        sys.audit("_thread.start_new_thread", *args)
        return start(*args)

    _thread.start_new_thread = threading._start_new_thread = _audited


class Watch:
    """Listens from the moment it is made to the end of the process.

    Attributes:
        heard: a line for each kind of request that an answer's own lines made.
        threads: how many threads were started by answers, or by what they called.
    """

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.threads = 0
        self._listening = True
        self._reader: int | None = None  # the thread on which the guard reads functions' bodies
        self._library = sysconfig.get_path("stdlib")
        sys.addaudithook(self._hear)

    @contextlib.contextmanager
    def reading_bodies(self) -> Iterator[None]:
        """In the block this thread may read functions' bodies unheard; whatever else happens is heard.

        The guard reads those of all functions after each probe. To look for the asker of each read takes ten times as
        long as the guard's own work.
        """
        self._reader = _thread.get_ident()
        try:
            yield
        finally:
            self._reader = None

    def _hear(self, event: str, args: tuple[object, ...]) -> None:
        if self._reader is not None and event == "object.__getattr__" and self._is_the_guard_s(args[1]):
            return
        words = _TELLING.get(event) or _FAMILIES.get(event[: event.find(".") + 1])
        if words is None or not self._listening:
            return
        self._listening = False  # what follows raises events itself
        try:
            frame = sys._getframe(1)
            if event.startswith("_thread.") and self._from_an_answer(frame):
                self.threads += 1
            of_a_library = len(args) > 0 and type(args[0]) is str and args[0].startswith(_LIBRARIES)
            cell = self._asker(frame, of_a_library)
            line = f"{cell}: {words} ({event})"
            if cell and line not in self.heard:
                self.heard.append(line)
        finally:
            self._listening = True

    def _is_the_guard_s(self, attribute: object) -> bool:
        return attribute in _BODY and self._reader == _thread.get_ident()

    def _from_an_answer(self, frame: FrameType | None) -> bool:
        """Say whether an answer's line is at work, and no library that has a thread to wait or to compile."""
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith(ANSWER):
                return True
            if any(library in name for library in _THREADED):
                return False
            frame = frame.f_back
        return False

    def _asker(self, frame: FrameType | None, of_a_library: bool) -> str | None:
        """Return the answer cell whose line asks, through Python's own library if need be; None for others.

        An import reads a library's files and runs its body. The answer has asked for neither.
        """
        while frame is not None:
            if of_a_library and frame.f_code is _IMPORTS:
                return None
            of_a_library |= frame.f_code.co_name == "<module>"
            name = frame.f_code.co_filename
            if name.startswith(ANSWER):
                return name.removeprefix(ANSWER).rstrip(">")
            if not name.startswith((self._library, "<frozen", __file__)) or "site-packages" in name:
                return None
            frame = frame.f_back
        return None
