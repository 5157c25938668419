"""Files without a file: arrays that a program maps, and texts that it reads."""

import builtins
import io
import os
import re
import string
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from ..patches import Patches
from ..user_line import is_inside, is_users
from ..waits import Waits
from .columns import TEXT, value
from .downloads import Downloads
from .folders import is_data
from .tables import numbers

_ELEMENTS, _LINES = 2**22, 1000
_VISIBLE = 95  # of `string.printable`: programs look for letters of their own among those of the text
_OF_PAIRS, _PAIRS = re.compile(r"ml-\d+(k|m)|ratings|interactions|edges"), 2**14  # names of files of users and items
_LARGEST = 256  # ids in a made-up array: every vocabulary has them


def install(patches: Patches, waits: Waits) -> None:
    """Teach `numpy.memmap`, `numpy.load` and `open`, for reading alone."""
    base_map, base_load, base_file, base_open = np.memmap, np.load, np.fromfile, builtins.open
    downloads = Downloads(_text)

    class memmap(base_map):
        def __new__(cls, filename: Any, dtype: Any = np.uint8, mode: str = "r+", *args: Any, **kwargs: Any) -> Any:
            if mode in ("r", "c") and _is_missing(filename):
                waits.leave_out("file", f"{Path(filename).name}: an array of made-up numbers")
                return _numbers(dtype)
            return base_map(filename, dtype, mode, *args, **kwargs)

    def load(file: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_missing(file) and not str(file).endswith(".npz"):
            waits.leave_out("file", f"{Path(file).name}: an array of made-up numbers")
            return _numbers(np.uint16)
        return base_load(file, *args, **kwargs)

    def fromfile(file: Any, dtype: Any = float, count: int = -1, *args: Any, **kwargs: Any) -> Any:
        if _is_missing(file):
            waits.leave_out("file", f"{Path(file).name}: an array of made-up numbers")
            return _numbers(dtype)[: None if count < 0 else count]
        return base_file(file, dtype, count, *args, **kwargs)

    def read(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        kept = downloads.opened(file, mode)
        if kept is not None:
            return kept
        if mode in ("r", "rt") and _is_missing(file) and str(file).endswith(".txt") and _is_asked_for(file):
            if _OF_PAIRS.match(Path(file).stem):
                waits.leave_out("file", f"{Path(file).name}: made-up pairs")
                return io.StringIO(numbers(2, " ", _PAIRS))
            waits.leave_out("file", f"{Path(file).name}: made-up text")
            return io.StringIO(_text())
        return base_open(file, mode, *args, **kwargs)

    patches.put(np, "memmap", memmap)
    patches.put(np, "load", load)
    patches.put(np, "fromfile", fromfile)
    for owner in (builtins, io):
        patches.put(owner, "open", read)
    downloads.install(patches, waits)


def _text() -> str:
    return "\n".join([string.printable[:_VISIBLE], *(value(TEXT, line) for line in range(_LINES))])


def _is_missing(file: Any) -> bool:
    return isinstance(file, (str, os.PathLike)) and not os.path.exists(file)


def _is_asked_for(file: Any) -> bool:
    """Say whether the program opens the file, or a library one that is called like data.

    Python itself looks for a `top_level.txt` of every package.
    """
    frame = sys._getframe(2)
    while frame.f_back is not None and (is_inside(frame.f_code.co_filename) or _is_pathlib(frame)):
        frame = frame.f_back
    return is_users(frame) or is_data(file)


def _is_pathlib(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__", "").partition(".")[0] == "pathlib"


def _numbers(dtype: Any) -> Any:
    return np.random.default_rng(0).integers(0, _LARGEST, _ELEMENTS).astype(dtype)
