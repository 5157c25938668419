"""Files from hosts that cannot be reached: they are made up, and what a program saves of them stays in memory.

Otherwise a later run, on a real GPU, would find the made-up file on the disk and train on it.
"""

import functools
import io
import os
import sys
from collections.abc import Callable
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from ..patches import Patches
from ..waits import Waits
from .folders import content_of, is_mnist


class Downloads:
    """What was made up in place of downloads, and the files in which the program has saved it.

    Args:
        text: returns what a text file holds.
    """

    def __init__(self, text: Callable[[], str]) -> None:
        self._text = text
        self._kinds: set[str] = set()  # endings of the files that were made up
        self._files: dict[str, bytes] = {}  # path -> what was saved there

    def install(self, patches: Patches, waits: Waits) -> None:
        """Teach requests and urllib as soon as they are imported, and `os.path`."""
        patches.after_import("requests.api", lambda p, module: self._requests(p, module, waits))
        patches.after_import("urllib.request", lambda p, module: self._urllib(p, module, waits))
        for name in ("exists", "isfile"):
            patches.put(os.path, name, self._finding(getattr(os.path, name)))

    def opened(self, file: Any, mode: str) -> Any:
        """Return the file in memory that stands for one on the disk; None where the disk's is meant."""
        if not self._kinds or not isinstance(file, (str, os.PathLike)):
            return None
        path = os.path.abspath(os.fspath(file))
        if mode[0] == "r" and path in self._files:
            saved = self._files[path]
            return io.BytesIO(saved) if "b" in mode else io.StringIO(saved.decode())
        if mode[0] not in "wx" or Path(path).suffix not in self._kinds or os.path.lexists(path):
            return None
        kept = _Bytes(self._files, path)
        return kept if "b" in mode else io.TextIOWrapper(kept, encoding="utf-8", newline="")

    def _finding(self, base: Any) -> Any:
        @functools.wraps(base)
        def found(path: Any) -> bool:
            return base(path) or (
                bool(self._files) and isinstance(path, (str, os.PathLike)) and os.path.abspath(path) in self._files
            )

        return found

    def _made(self, url: Any, waits: Waits) -> bytes | None:
        """Return what stands for the file at `url`; None for kinds that are not made up."""
        path = Path(urlparse(str(url)).path)
        own = path.suffix == ".bin" or is_mnist(path)  # torchvision's sums would not agree
        made = self._text().encode() if path.suffix == ".txt" else None if own else content_of(path)
        if made is not None:
            self._kinds.add(path.suffix)
            waits.leave_out("file", f"{url}: made-up {'text' if path.suffix == '.txt' else 'rows'}")
        return made

    def _requests(self, patches: Patches, module: Any, waits: Waits) -> None:
        base = module.request

        @functools.wraps(base)
        def request(method: str, url: str, **kwargs: Any) -> Any:
            try:
                return base(method, url, **kwargs)
            except OSError:
                made = self._made(url, waits)
                if made is None:
                    raise
            answer = sys.modules["requests"].Response()
            answer.status_code, answer.url, answer._content, answer._content_consumed = 200, url, made, True
            answer.encoding = "utf-8"
            answer.headers["content-length"] = str(len(made))
            return answer

        patches.put(module, "request", request)

    def _urllib(self, patches: Patches, module: Any, waits: Waits) -> None:
        base = module.urlopen

        @functools.wraps(base)
        def urlopen(url: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return base(url, *args, **kwargs)
            except OSError:
                made = self._made(getattr(url, "full_url", url), waits)
                if made is None:
                    raise
            return _Answer(made, getattr(url, "full_url", url))

        patches.put(module, "urlopen", urlopen)


class _Answer(io.BytesIO):
    """What urllib returns for a file."""

    status = code = 200

    def __init__(self, made: bytes, url: str) -> None:
        super().__init__(made)
        self.url = url
        self.headers = Message()
        self.headers["Content-Length"] = str(len(made))

    def info(self) -> Message:
        """Return the headers."""
        return self.headers

    def geturl(self) -> str:
        """Return the address."""
        return self.url

    def getcode(self) -> int:
        """Return the status."""
        return self.status


class _Bytes(io.BytesIO):
    """A file that is kept in a dictionary when it is closed."""

    def __init__(self, files: dict[str, bytes], path: str) -> None:
        super().__init__()
        self._files, self._path = files, path

    def close(self) -> None:
        """Keep what was written."""
        if not self.closed:
            self._files[self._path] = self.getvalue()
        super().close()
