"""Which line of the user's program is running, and which module of the model."""

import functools
import os
import sys
import sysconfig
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch

_HELPERS = str(Path(__file__).resolve().parents[1]) + os.sep
_TORCH = str(Path(torch.__file__).parent) + os.sep
_LIBRARIES = tuple(
    str(Path(sysconfig.get_path(name)).resolve()) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_FUNCTIONS = tuple(os.path.join(*name) for name in (("autograd", "function.py"), ("utils", "checkpoint.py")))
_OWN, _CALL, _FUNCTION, _LIBRARY, _USER = range(5)
_kinds: dict[str, int] = {}


class Place(NamedTuple):
    """Where a program is.

    Attributes:
        line: "file:line" of the user's innermost frame, or "In[3]:line" of a notebook's cell; "" where there is none.
        module: the innermost module whose forward pass runs; None outside of any.
        root: the outermost one.
        functions: "apply" inside an `autograd.Function`, "checkpoint" inside activation checkpointing, and "forward"
            as well inside its `autograd.Function`.
    """

    line: str
    module: torch.nn.Module | None
    root: torch.nn.Module | None
    functions: frozenset[str] = frozenset()


def place() -> Place:
    """Return where the calling thread is."""
    frame: FrameType | None = sys._getframe(1)
    line = library = ""
    module = root = None
    functions: set[str] = set()
    while frame is not None:
        code = frame.f_code
        kind = _kinds.get(code.co_filename)
        if kind is None:
            kind = _kinds[code.co_filename] = _kind(code.co_filename)
        if kind == _USER:
            line = line or f"{_named(code.co_filename)}:{frame.f_lineno}"
        elif kind == _LIBRARY:
            library = library or f"{code.co_filename}:{frame.f_lineno}"
        elif kind == _CALL and code.co_name == "_call_impl":
            root = frame.f_locals["self"]
            module = module or root
        elif kind == _FUNCTION:
            functions.add(code.co_name)
        frame = frame.f_back
    return Place(line or library, module, root, frozenset(functions) & {"apply", "checkpoint", "forward"})


def is_users(frame: FrameType) -> bool:
    """Say whether a frame is of the program's own code."""
    return _kind(frame.f_code.co_filename) == _USER


def is_user_file(path: str) -> bool:
    """Say whether a file is of the program's own code."""
    return _kind(path) == _USER


def is_library_loading() -> bool:
    """Say whether a module that is not the program's own is being loaded, without code of the program in between."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_users(frame):
        if frame.f_code.co_name == "<module>" and _kind(frame.f_code.co_filename) == _LIBRARY:
            return True
        frame = frame.f_back
    return False


def is_inside(path: str) -> bool:
    """Say whether a file is PyTorch's or the dry run's own."""
    return _kind(path) in (_OWN, _CALL, _FUNCTION)


def is_course_file(path: str) -> bool:
    """Say whether a file is in `helpers`, which started the script."""
    return path.startswith(_HELPERS)


@functools.cache
def _named(path: str) -> str:
    """Return the name of a cell for the file that Jupyter pretends it to be; of real files the path."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    label = shell.compile.format_code_name(path) if shell is not None else None
    return label[1] if label else path


def _kind(path: str) -> int:
    if path.startswith(_TORCH):
        if path.endswith(_FUNCTIONS):
            return _FUNCTION
        return _CALL if path.endswith(os.path.join("nn", "modules", "module.py")) else _OWN
    if path.startswith(_HELPERS) or path.startswith("<frozen"):
        return _OWN
    return _LIBRARY if path.startswith(_LIBRARIES) or "site-packages" in path else _USER
