"""Which line of the user's program is running, and which module of the model."""

import functools
import os
import sys
import sysconfig
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

_HELPERS = str(Path(__file__).resolve().parents[1]) + os.sep
_TORCH = str(Path(torch.__file__).parent) + os.sep
_LIBRARIES = tuple(
    str(Path(sysconfig.get_path(name)).resolve()) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_CHECKPOINT = os.path.join("utils", "checkpoint.py")
_FUNCTIONS = os.path.join("autograd", "function.py"), _CHECKPOINT
_OWN, _CALL, _FUNCTION, _LIBRARY, _USER = range(5)
_kinds: dict[str, int] = {}
_cells: dict[str, str] = {}  # of the notebook that has started this process


class Place(NamedTuple):
    """Where a program is.

    Attributes:
        line: "file:line" of the user's innermost frame, or "In[3]:line" of a notebook's cell; "" where there is none.
        module: the innermost module whose forward pass runs; None outside of any.
        root: the outermost one.
        functions: "apply" inside an `autograd.Function`, "checkpoint" inside activation checkpointing, and "forward"
            as well inside its `autograd.Function`.
        given: the arguments of the outermost module.
    """

    line: str
    module: torch.nn.Module | None
    root: torch.nn.Module | None
    functions: frozenset[str] = frozenset()
    given: tuple[object, ...] = ()


def place() -> Place:
    """Return where the calling thread is."""
    frame: FrameType | None = sys._getframe(1)
    line = library = ""
    module = root = outermost = None
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
            outermost = frame.f_locals
            root = outermost["self"]
            module = module or root
        elif kind == _FUNCTION:
            functions.add(code.co_name)
        frame = frame.f_back
    given = (*outermost.get("args", ()), *outermost.get("kwargs", {}).values()) if outermost else ()
    return Place(line or library, module, root, frozenset(functions) & {"apply", "checkpoint", "forward"}, given)


def is_python_inside_backward() -> bool:
    """Say whether Python code runs inside a backward pass, as where a checkpoint computes activations again.

    The gradients of `create_graph` come from autograd's own C++ instead.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_engine_run_backward":
        name = frame.f_code.co_filename
        if _kind(name) in (_USER, _CALL, _LIBRARY) or name.endswith(_CHECKPOINT):
            return True
        frame = frame.f_back
    return False


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


def cells() -> dict[str, str]:
    """Return the names of the notebook's cells, by the file that Jupyter pretends each to be."""
    shell = _shell()
    return {path: _named(path) for path in getattr(shell.compile, "_filename_map", ())} if shell is not None else {}


def name_cells(names: dict[str, str]) -> None:
    """Use the names of the cells of the notebook that has sent this process its functions."""
    _cells.update(names)
    _named.cache_clear()


def _shell() -> Any:
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()


@functools.cache
def _named(path: str) -> str:
    """Return the name of a cell for the file that Jupyter pretends it to be; of real files the path."""
    shell = _shell()
    label = shell.compile.format_code_name(path) if shell is not None else None
    return label[1] if label else _cells.get(path, path)


def _kind(path: str) -> int:
    if path.startswith(_TORCH):
        if path.endswith(_FUNCTIONS):
            return _FUNCTION
        return _CALL if path.endswith(os.path.join("nn", "modules", "module.py")) else _OWN
    if path.startswith(_HELPERS) or path.startswith("<frozen"):
        return _OWN
    return _LIBRARY if path.startswith(_LIBRARIES) or "site-packages" in path else _USER
