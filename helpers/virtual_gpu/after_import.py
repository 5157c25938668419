"""Change a module as soon as it has been imported."""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any


class AfterImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds one module as Python does, and calls `change(module)` when it has been loaded; at once if it was already.

    Args:
        name: of the module.
        change: what to do with it.
    """

    def __init__(self, name: str, change: Callable[[Any], None]) -> None:
        self._name, self._change = name, change
        if name in sys.modules:
            change(sys.modules[name])
        else:
            sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Take the place of the module's loader."""
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def forget(self) -> None:
        """Stop waiting for the module."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def create_module(self, spec: Any) -> Any:
        """Let the module's own loader do it."""
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        """Load the module, and change it."""
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._change(module)
