"""Take part in the import of a module that a program has yet to import."""

import importlib.abc
import sys
from typing import Any


class ModuleHook(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds one module as Python does, and loads it by `load`, which a subclass replaces.

    Args:
        name: of the module.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def load(self, module: Any) -> None:
        """Run the module's own code."""
        self._loader.exec_module(module)

    def forget(self) -> None:
        """Stop waiting for the module."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Take the place of the module's loader."""
        if name != self._name:
            return None
        self.forget()
        for finder in list(sys.meta_path):  # another hook may wait for the same module
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                self._loader, spec.loader = spec.loader, self
                return spec
        return None

    def create_module(self, spec: Any) -> Any:
        """Let the module's own loader do it."""
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        """Load the module, and leave no trace of the hook in it."""
        module.__spec__.loader = module.__loader__ = self._loader
        self.load(module)
