"""Tables without a file: those that a program reads with numpy or pandas, and what gzip has compressed."""

import functools
import gzip
import io
import os
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from ..patches import Patches
from ..user_line import is_users
from ..waits import Waits
from .asked import layout_for, rows_of
from .folders import content_of, is_data, unpacked

_ROWS, _OF_AN_ID = 1024, 16  # rows, and how many of them begin with the same number
# Series on which forecasters are compared: a word in the name: columns besides the date, the last of them OT; rows.
_SERIES = {
    "etth": (7, 17_420),
    "ettm": (7, 69_680),
    "weather": (21, 52_696),
    "electricity": (321, 26_304),
    "traffic": (862, 17_544),
    "exchange_rate": (8, 7_588),
    "national_illness": (7, 966),
}
_PAIR, _COLUMNS = 2, 9  # columns between blanks, as of ids; between other marks, as of features and a label


def install(patches: Patches, waits: Waits) -> None:
    """Teach numpy's readers of text, gzip and, as soon as it is imported, pandas."""

    def assume(file: Any, words: str) -> None:
        waits.leave_out("file", f"{Path(file).name}: {words}")

    patches.put(np, "loadtxt", _text(np.loadtxt, ("delimiter", "skiprows"), assume))
    patches.put(np, "genfromtxt", _text(np.genfromtxt, ("delimiter", "skip_header"), assume))
    patches.put(gzip, "open", _gzip(gzip.open, assume))
    patches.after_import("pandas", lambda p, module: _pandas(p, module, assume))


def _is_missing(file: Any, depth: int = 2) -> bool:
    """Say whether the program itself, or a library for what is called like data, reads a file that is not there."""
    return (
        isinstance(file, (str, os.PathLike))
        and "://" not in str(file)
        and not os.path.lexists(file)
        and (is_users(sys._getframe(depth)) or is_data(file))
    )


def _text(base: Callable[..., Any], names: tuple[str, str], assume: Any) -> Callable[..., Any]:
    """Return `loadtxt` or `genfromtxt`; `names` are those of its arguments for the mark and the lines to leave out."""

    @functools.wraps(base)
    def read(file: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_missing(file):
            return base(file, *args, **kwargs)
        assume(file, "made-up numbers")
        mark, skipped = kwargs.get(names[0]), kwargs.get(names[1]) or 0
        kind = kwargs.get("dtype", args[0] if args else None)
        fields = np.dtype(kind).names if kind is not None else None
        wanted = np.atleast_1d(kwargs["usecols"]).max() + 1 if kwargs.get("usecols") is not None else 0
        columns = len(fields or ()) or max(int(wanted), _COLUMNS if mark else _PAIR)
        return base(io.StringIO("\n" * skipped + numbers(columns, str(mark or " "))), *args, **kwargs)

    return read


def numbers(columns: int, mark: str, rows: int = _ROWS) -> str:
    """Return rows of whole numbers: the first one is an id that many rows share, the last one of many is 0 or 1."""

    def cell(row: int, column: int) -> int:
        if column == 0:
            return 1 + row // _OF_AN_ID
        return row % 2 if column > 1 and column == columns - 1 else 1 + (7 * row + column) % 256

    return "\n".join(mark.join(str(cell(row, column)) for column in range(columns)) for row in range(rows))


def _gzip(base: Callable[..., Any], assume: Any) -> Callable[..., Any]:
    @functools.wraps(base)
    def read(filename: Any, mode: str = "rb", *args: Any, **kwargs: Any) -> Any:
        made = unpacked(Path(filename)) if mode[0] == "r" and _is_missing(filename) else None
        if made is None:
            return base(filename, mode, *args, **kwargs)
        assume(filename, "made-up text or rows")
        return io.TextIOWrapper(io.BytesIO(made), encoding="utf-8") if "t" in mode else io.BytesIO(made)

    return read


def _pandas(patches: Patches, module: Any, assume: Any) -> None:
    for name, ending in (("read_csv", ".csv"), ("read_table", ".tsv"), ("read_parquet", ".parquet")):
        patches.put(module, name, _frame(getattr(module, name), ending, assume))
    patches.put(module, "read_json", _frame(module.read_json, ".json", assume))


def _frame(base: Callable[..., Any], ending: str, assume: Any) -> Callable[..., Any]:
    @functools.wraps(base)
    def read(file: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_missing(file):
            return base(file, *args, **kwargs)
        assume(file, rows_of(Path(file).stem))
        return base(io.BytesIO(_rows(Path(file), ending, kwargs)), *args, **kwargs)

    return read


def _rows(file: Path, ending: str, asked: dict[str, Any]) -> bytes:
    """Return a file for pandas: columns that it is asked for by name hold numbers, others what their layout says."""
    if ending in (".csv", ".tsv"):
        mark = asked.get("sep") or asked.get("delimiter") or ("," if ending == ".csv" else "\t")
        mark = mark if mark in (",", "\t", ";", "|", "::", ":") else " "
        names = asked.get("names")
        used = asked.get("usecols")
        given = [str(name) for name in used] if isinstance(used, (list, tuple)) else []
        if names is not None or asked.get("header", 0) is None:
            count = len(names) if names is not None else _COLUMNS
            return numbers(count, mark).encode()
        if found := next((size for word, size in _SERIES.items() if file.stem.lower().startswith(word)), None):
            return _series(*found, mark)
        known, _ = layout_for(file.stem)
        if given and not set(given) <= set(known) and not all(name.isdecimal() for name in given):
            return f"{mark.join(given)}\n{numbers(len(given), mark)}".encode()
        return content_of(Path(file.stem + (".tsv" if mark == "\t" else ".csv"))) or b""
    return content_of(Path(file.stem + (".jsonl" if asked.get("lines") else ending))) or b""


def _series(columns: int, rows: int, mark: str) -> bytes:
    """Return a series by the hour, with its header."""
    start = datetime(2016, 7, 1)
    names = ["date", *(str(column) for column in range(columns - 1)), "OT"]
    values = [mark.join(str((row + column) % 24 / 24) for column in range(columns)) for row in range(24)]
    lines = (f"{start + timedelta(hours=row)}{mark}{values[row % 24]}" for row in range(rows))
    return "\n".join([mark.join(names), *lines]).encode()
