"""Helpers of Training at Scale: what the notebooks import.

`from helpers import MemoryMeter` imports the meter, and nothing that the notebook does not name: PyTorch alone takes
seconds. The names, each with its module, stand in `__init__.pyi`.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

from .core import environment

environment.set_up()  # before anything imports torch

_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_MODULES = {name.name: line.module for line in _STUB.body if isinstance(line, ast.ImportFrom) for name in line.names}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    """Import the module in which `name` lives. Python calls this for names that are not here yet."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    environment.quiet_loggers()  # the import may have been PyTorch's
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
