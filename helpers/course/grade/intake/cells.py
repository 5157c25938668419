"""From the bytes of a notebook file to its cells, whatever the bytes are.

Outputs are taken out before anything is parsed: they are most of a large notebook, nobody here reads them, and Python
objects made of them would take many times the file's size in memory. Nothing of a notebook is run or followed here.
"""

import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

LARGEST = 256 * 2**20  # bytes of a notebook that is looked at
_LARGEST_REST = 8 * 2**20  # bytes of a notebook beside its outputs: text that people wrote
_MOST_TOKENS = 5_000_000  # strings and brackets; some five seconds
_MOST_CELLS = 2_000
_LONGEST_ANSWER = 2**18  # characters of one cell

# A whole string (to the end of the file when it is not closed), or a bracket outside of strings. No backtracking.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
_HEAVY = (b'"outputs"', b'"attachments"', b'"widgets"')
_OPENS = re.compile(rb"\s*+:\s*+(?=[\[{])")
_NO_TEXT = re.compile("[\ud800-\udfff\0]")  # halves of surrogate pairs, and NUL: neither a file nor Python takes them
_BEGINNINGS = {b"PK": "is a zip archive", b"<": "is a web page", b"%PDF": "is a PDF", b"# %%": "is a Python script"}
_DEFINES = re.compile(r"^(?:async\s+def|def|class)\s+(\w+)", re.MULTILINE)


class NotebookError(Exception):
    """The bytes are no notebook. The message is the end of a sentence that begins with the file's name."""


@dataclass(frozen=True)
class Cell:
    """A cell, as far as grading looks at it.

    Attributes:
        number: place in the notebook, from 1.
        kind: "code", "markdown", "raw", or "strange" for what is none of them.
        grade_id: nbgrader's name of the cell, if it has one.
        ids: other names it has: its id, and the id that Colab keeps in the metadata.
        oddity: what had to be mended in the source, in words; "" if nothing.
    """

    number: int
    kind: str
    grade_id: str | None
    ids: tuple[str, ...]
    source: str
    oddity: str

    @cached_property
    def defines(self) -> frozenset[str]:
        """The functions and classes that a code cell defines."""
        return defined_by(self.source) if self.kind == "code" else frozenset()


def defined_by(text: str) -> frozenset[str]:
    """Return the names of the functions and classes that `text` defines, also if it does not parse."""
    return frozenset(_DEFINES.findall(text))


def read_cells(data: bytes | bytearray) -> list[Cell]:
    """Return the cells of the notebook (nbformat 4, any minor version) in `data`, in UTF-8, UTF-16 or UTF-32.

    Raises:
        NotebookError: it is none, in an old format, or too large.
    """
    if len(data) > LARGEST:
        raise NotebookError(f"is larger than {LARGEST >> 20} MiB")
    cells = _notebook(_parsed(data))
    return [_cell(number, cell) for number, cell in enumerate(cells, start=1) if isinstance(cell, dict)]


def _parsed(data: bytes | bytearray) -> Any:
    head = bytes(data[:4096]).lstrip()
    if not head and not data.strip():
        raise NotebookError("is empty")
    for beginning, what in _BEGINNINGS.items():
        if head.startswith(beginning):
            raise NotebookError(f"{what}, not a notebook")
    try:
        encoding = json.detect_encoding(data)
        if encoding not in ("utf-8", "utf-8-sig"):
            data = data.decode(encoding).encode(errors="surrogatepass")
        text = _without_outputs(data).decode("utf-8-sig")
        return json.loads(text, parse_int=float)  # float: no integer is too long for it
    except UnicodeError:
        raise NotebookError("is not a notebook: it is not UTF-8 text") from None
    except RecursionError:
        raise NotebookError("is not a notebook: it is nested too deeply") from None
    except json.JSONDecodeError as error:
        half = error.pos >= len(error.doc.rstrip()) or error.msg.startswith("Unterminated")
        why = "it breaks off before its end" if half else f"it is not JSON ({error.msg})"
        raise NotebookError(f"is not a notebook: {why}") from None


def _without_outputs(data: bytes | bytearray) -> bytes:
    """Return the JSON text `data` with nothing in its outputs, attachments and states of widgets."""
    parts: list[bytes | bytearray] = []  # of `data`, to be joined
    start = depth = 0  # `start`: up to where `data` is dealt with
    end_at = None  # the depth at which a list of outputs ends, while in one
    for count, token in enumerate(_TOKEN.finditer(data)):
        if count > _MOST_TOKENS:
            raise NotebookError(f"has more than {_MOST_TOKENS:,} strings and brackets")
        if end_at is None and token.start() - start > _LARGEST_REST:
            break  # too long already; reported below
        first = data[token.start()]
        if first == ord('"'):
            short = token.end() - token.start() <= 13
            opens = short and end_at is None and token[0] in _HEAVY and _OPENS.match(data, token.end())
            if opens:
                parts.append(data[start : opens.end() + 1])
                end_at = depth
        elif first in b"[{":
            depth += 1
        else:
            depth -= 1
            if depth == end_at:
                start, end_at = token.start(), None
    if end_at is None:
        parts.append(data[start:])
    if sum(map(len, parts)) > _LARGEST_REST:
        raise NotebookError(f"has more than {_LARGEST_REST >> 20} MiB besides its outputs")
    return b"".join(parts)


def _notebook(raw: Any) -> list:
    if not isinstance(raw, dict):
        raise NotebookError("is not a notebook: it is JSON of another kind")
    version = raw.get("nbformat")
    if "worksheets" in raw or (isinstance(version, float) and version < 4):
        number = f"nbformat {version:.0f}" if isinstance(version, float) else "before nbformat 4"
        raise NotebookError(f"is in an old format ({number}); open it in JupyterLab and save it again")
    if not isinstance(raw.get("cells"), list):
        raise NotebookError("is not a notebook: it has no list of cells")
    if len(raw["cells"]) > _MOST_CELLS:
        raise NotebookError(f"has more than {_MOST_CELLS:,} cells")
    return raw["cells"]


def _cell(number: int, cell: dict) -> Cell:
    metadata = cell.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    nbgrader = metadata.get("nbgrader")
    grade_id = nbgrader.get("grade_id") if isinstance(nbgrader, dict) else None
    ids = tuple(name for name in (cell.get("id"), metadata.get("id")) if isinstance(name, str))
    kind = cell.get("cell_type")
    source, oddity = _text(cell.get("source", ""))
    return Cell(
        number,
        kind if kind in ("code", "markdown", "raw") else "strange",
        grade_id if isinstance(grade_id, str) else None,
        ids,
        source,
        oddity,
    )


def _text(source: Any) -> tuple[str, str]:
    """Return a cell's source as one string, and what had to be mended."""
    oddity = ""
    if isinstance(source, list):
        if not all(isinstance(line, str) for line in source):
            oddity = "has lines that are not text; they were left out"
        source = "".join(line for line in source if isinstance(line, str))
    if not isinstance(source, str):
        return "", "holds no text"
    if len(source) > _LONGEST_ANSWER:
        return "", f"is longer than {_LONGEST_ANSWER:,} characters and was not read"
    if _NO_TEXT.search(source):
        return _NO_TEXT.sub("\ufffd", source), "has characters that are not text; they were replaced"
    return source, oddity
