"""Find the notebooks in what a student handed in: nested folders and ZIP archives.

No link is followed, nothing is unpacked to the disk, only regular files are opened, and there is a limit to everything:
a folder may hold links to itself, pipes that never end and archives that unpack to more than the disk holds.
"""

import io
import os
import stat
import time
import zipfile
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from .cells import LARGEST

DEEPEST = 12  # folders and archives within each other
MOST_FILES = 20_000
MOST_NOTEBOOKS = 50
MOST_BYTES = 2**30  # read of one student
_LARGEST_INNER = 64 * 2**20  # bytes of an archive within an archive
_LONGEST_READ = 8 * 2**20  # bytes that `zipfile` may ask for at once: its table of contents
_ENDINGS = (".ipynb", ".ipynb.txt", ".ipynb.json")  # the last two: what browsers make of the first
_READ = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
_TOO_DEEP = f"was not opened: it is more than {DEEPEST} folders deep"


class _Refused(Exception):
    """Something that is not read. The message is the end of a sentence that begins with its name."""


@dataclass(frozen=True)
class NotebookFile:
    """A file that should be a notebook, by its name.

    Attributes:
        path: where it lies, below the student's folder, e.g. "work.zip/src/03b_x1_amp_cnn.ipynb".
        depth: folders and archives around it.
        modified: seconds since 1970.
        data: its bytes; empty when there is a problem.
        problem: why it was not read: the end of a sentence that begins with its name. "" if it was read.
    """

    path: str
    depth: int
    modified: float
    data: bytes | bytearray = b""
    problem: str = ""

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.path.rpartition("/")[2]


def is_notebook(name: str) -> bool:
    """Say whether a file of this name should be a notebook."""
    return name.lower().endswith(_ENDINGS) and not name.startswith(("._", ".~"))  # macOS's and Jupyter's own files


@dataclass
class Search:
    """One search through what a student handed in.

    Attributes:
        others: files that are no notebooks.
        closed: what could not be looked into, each a sentence without its full stop: a notebook may be in it.
        links: links, which are not followed.
    """

    others: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    _files: int = 0
    _notebooks: int = 0
    _bytes: int = 0

    def notebooks(self, start: Path) -> Iterator[NotebookFile]:
        """Yield the notebooks in the folder, the archive or the file `start`, shallowest first.

        Checkpoint copies, hidden folders and the folders that macOS adds to archives are left out.
        """
        todo = deque([(start, "", 0)])
        while todo:
            place, shown, depth = todo.popleft()
            try:
                if place.is_symlink():
                    self.closed.append(f"{shown or place.name} is a link, which is not followed")
                elif place.is_dir():
                    yield from self._folder(place, shown, depth, todo)
                elif place.suffix.lower() == ".zip":
                    with _opened(place) as file:
                        yield from self._archive(file, shown, depth)
                else:
                    yield self._file(place, place.name, depth)
            except (OSError, _Refused) as error:
                self.closed.append(f"{shown or start.name} {_why(error)}")

    def _folder(self, folder: Path, shown: str, depth: int, todo: deque) -> Iterator[NotebookFile]:
        with os.scandir(folder) as entries:
            room = max(0, MOST_FILES - self._files)
            inside = sorted(islice(entries, room + 1), key=lambda entry: entry.name)
        if len(inside) > room:
            self.closed.append(f"{shown or folder.name} has too many files: only {MOST_FILES:,} were examined")
        self._files += len(inside[:room])
        for entry in inside[:room]:
            path = f"{shown}/{entry.name}" if shown else entry.name
            if is_notebook(entry.name) and not entry.is_dir(follow_symlinks=False):
                yield self._file(Path(entry.path), path, depth)
            elif entry.is_symlink() or getattr(entry, "is_junction", bool)():
                self.links.append(path)
            elif entry.is_dir(follow_symlinks=False):
                if not _ignored(entry.name):
                    self._later(Path(entry.path), path, depth + 1, todo)
            elif entry.name.lower().endswith(".zip"):
                self._later(Path(entry.path), path, depth + 1, todo)
            else:
                self.others.append(path)

    def _later(self, place: Path, shown: str, depth: int, todo: deque) -> None:
        if depth > DEEPEST:
            self.closed.append(f"{shown} {_TOO_DEEP}")
        else:
            todo.append((place, shown, depth))

    def _file(self, path: Path, shown: str, depth: int) -> NotebookFile:
        modified = 0.0
        try:
            with _opened(path) as file:
                status = os.fstat(file.fileno())
                modified = status.st_mtime
                data = self._read(file, status.st_size)
        except (OSError, _Refused) as error:
            return NotebookFile(shown, depth, modified, problem=_why(error))
        return NotebookFile(shown, depth, modified, data)

    def _read(self, file: io.BufferedIOBase, size: int, largest: int = LARGEST) -> bytearray:
        """Read a file that claims to have `size` bytes, which may be a lie."""
        self._notebooks += 1
        if self._notebooks > MOST_NOTEBOOKS:
            raise _Refused(f"was not read: there are more than {MOST_NOTEBOOKS} notebooks")
        if size > largest:
            raise _Refused(f"is larger than {largest >> 20} MiB")
        data = bytearray()
        while chunk := file.read(2**20):
            data += chunk
            self._bytes += len(chunk)
            if len(data) > largest:
                raise _Refused(f"is larger than {largest >> 20} MiB")
            if self._bytes > MOST_BYTES:
                raise _Refused(f"was not read: there is more than {MOST_BYTES >> 30} GiB to read")
        return data

    def _archive(self, file: io.BufferedIOBase, shown: str, depth: int) -> Iterator[NotebookFile]:
        try:
            with zipfile.ZipFile(_Careful(file)) as archive:
                members = sorted(archive.infolist(), key=lambda m: (m.filename.count("/"), m.filename))
                self._files += len(members)
                if self._files > MOST_FILES:
                    raise _Refused(f"was not opened: it has more than {MOST_FILES:,} files")
                for member in members:
                    yield from self._member(archive, member, shown, depth)
        except (OSError, _Refused):
            raise
        except Exception as error:  # zipfile raises a dozen kinds on what is no archive
            raise _Refused(_broken(error)) from None

    def _member(
        self, archive: zipfile.ZipFile, member: zipfile.ZipInfo, shown: str, depth: int
    ) -> Iterator[NotebookFile]:
        # A name such as "../../x" is no danger: it is shown and never written to.
        inside = member.filename.replace("\\", "/")
        *folders, name = inside.split("/")
        if member.is_dir() or any(map(_ignored, folders)):
            return
        path, depth = (f"{shown}/{inside}" if shown else inside), depth + len(folders)
        if is_notebook(name):
            data, problem = b"", ""
            try:
                data = self._unpacked(archive, member, LARGEST)
            except _Refused as error:
                problem = str(error)
            yield NotebookFile(path, depth, _time(member), data, problem)
        elif name.lower().endswith(".zip"):
            try:
                if depth >= DEEPEST:
                    raise _Refused(_TOO_DEEP)
                data = self._unpacked(archive, member, _LARGEST_INNER)
                yield from self._archive(io.BytesIO(data), path, depth + 1)
            except _Refused as error:
                self.closed.append(f"{path} {error}")
        else:
            self.others.append(path)

    def _unpacked(self, archive: zipfile.ZipFile, member: zipfile.ZipInfo, largest: int) -> bytearray:
        if stat.S_IFMT(member.external_attr >> 16) == stat.S_IFLNK:
            raise _Refused("is a link, which is not followed")
        if member.flag_bits & 1:
            raise _Refused("is encrypted")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others unpack without limit
            raise _Refused("uses an unsupported kind of compression; zip it the usual way")
        try:
            with archive.open(member) as file:
                return self._read(file, member.file_size, largest)
        except _Refused:
            raise
        except Exception as error:
            raise _Refused(_broken(error)) from None


class _Careful(io.BufferedIOBase):
    """A file for `zipfile` that refuses to read much at once: a table of contents of gigabytes is an attack."""

    def __init__(self, file: io.BufferedIOBase) -> None:
        self._file = file
        self.seek, self.tell = file.seek, file.tell

    def seekable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        if size is not None and size > _LONGEST_READ:
            raise _Refused("was not opened: its table of contents is too long")
        return self._file.read(size)


def _opened(path: Path) -> io.BufferedIOBase:
    """Open a regular file for reading; nothing else, and without waiting for anything."""
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        raise _Refused("is a link, which is not followed")
    if not stat.S_ISREG(mode):
        raise _Refused("is not a regular file")
    file = os.fdopen(os.open(path, _READ), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # it was changed meanwhile
        file.close()
        raise _Refused("is not a regular file")
    return file


def _ignored(folder: str) -> bool:
    return folder == "__MACOSX" or (folder.startswith(".") and not folder.startswith(".."))


def _time(member: zipfile.ZipInfo) -> float:
    try:
        return time.mktime((*member.date_time, 0, 0, -1))
    except (ValueError, OverflowError):
        return 0.0


def _why(error: OSError | _Refused) -> str:
    return str(error) if isinstance(error, _Refused) else f"cannot be opened: {error.strerror or type(error).__name__}"


def _broken(error: Exception) -> str:
    return f"is not a readable archive ({' '.join(str(error).split())[:80] or type(error).__name__})"
