"""Hear what an answer asks of Python and the system: files, processes, frames.

Python raises *audit events* for such things, and a hook that listens cannot be taken out again. Most events come from
libraries at their work. Only those count that an answer's own lines ask for.
"""

import sys
import sysconfig
from types import FrameType

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
    "object.__setattr__": "sets what Python keeps for itself",
    "object.__getattr__": "reads what Python keeps for itself",
    "_thread.start_new_thread": "starts a thread",
}
_FAMILIES = {
    "os.": "asks the system",
    "socket.": "opens a socket",
    "ctypes.": "calls C",
    "gc.": "searches all objects",
    "shutil.": "copies or removes files",
    "signal.": "sends signals",
    "pty.": "asks the system",
    "fcntl.": "asks the system",
    "mmap.": "maps memory",
}


class Watch:
    """Listens from its making to the end of the process. `heard` has a line for each kind of thing, once."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self._listening = True
        self._library = sysconfig.get_path("stdlib")
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[object, ...]) -> None:
        words = _TELLING.get(event) or _FAMILIES.get(event[: event.find(".") + 1])
        if words is None or not self._listening:
            return
        self._listening = False  # what follows raises events itself
        try:
            cell = self._asker(sys._getframe(1))
            line = f"{cell}: {words} ({event})"
            if cell and line not in self.heard:
                self.heard.append(line)
        finally:
            self._listening = True

    def _asker(self, frame: FrameType | None) -> str | None:
        """Return the answer cell whose line asks, through Python's own library if need be; None for others."""
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith(ANSWER):
                return name.removeprefix(ANSWER).rstrip(">")
            if not name.startswith((self._library, "<frozen")) or "site-packages" in name:
                return None
            frame = frame.f_back
        return None
